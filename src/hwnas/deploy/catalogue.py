"""What this machine is and which targets it can measure."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import hwnas
from hwnas.deploy.agent.added import read_added
from hwnas.deploy.device import HARDWARE, RUNS_ON
from hwnas.deploy.processor import cpu_fields, instruction_flags
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.runtimes.checks import graphics_card

__all__ = ["DeviceStatus", "devices", "devices_here", "machine", "processor_of", "versions"]

_ISA_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
"""The instructions that decide how fast a processor multiplies small numbers."""


@dataclass(frozen=True)
class DeviceStatus:
    """Whether a kind of target can be used here.

    Attributes:
        target: Pattern of its names, e.g. ``"cpu-onnxruntime-fp32-b{B}-t{T}"``.
        usable: Whether it can be measured now.
        reason: Why not and what to install; empty if usable.
        details: Processor, cores, instructions and versions, by name.
    """

    target: str
    usable: bool
    reason: str
    details: Mapping[str, str]


def devices() -> list[DeviceStatus]:
    """Every kind of target that hwnas knows, usable or not; devices elsewhere are asked."""
    from hwnas.deploy.agent.client import devices_elsewhere

    elsewhere = [
        DeviceStatus(_pattern(device.name, kind), not reason, reason, details)
        for device, kind, reason, details in devices_elsewhere()
    ]
    return [*devices_here(), *elsewhere]


def devices_here() -> list[DeviceStatus]:
    """Every kind of target of this machine, usable or not."""
    described = machine()
    found = []
    for hardware in HARDWARE:
        about = {key: described[key] for key in ("processor", "cores", "instructions")}
        if hardware == "cuda":
            about = {"processor": graphics_card() or "none"}
        for runtime in RUNTIMES.values():
            if hardware not in RUNS_ON[runtime.name]:
                continue
            reason = runtime.unavailable(hardware) or ""
            details = {**about, **versions(runtime.packages)}
            found += [
                DeviceStatus(
                    _pattern(hardware, f"{runtime.name}-{number_format}"),
                    not reason,
                    reason,
                    details,
                )
                for number_format in runtime.formats
            ]
    return found


def _pattern(hardware: str, kind: str) -> str:
    return f"{hardware}-{kind}-b{{B}}-t{{T}}"


def processor_of(hardware: str) -> str:
    """What computes: of this machine, or of a device elsewhere when it was added."""
    if hardware == "cuda":
        return graphics_card()
    return machine()["processor"] if hardware == "cpu" else read_added(hardware).processor


def machine() -> dict[str, str]:
    """This machine in words: processor, cores, instructions, memory, system and Python."""
    physical, memory_bytes = _cores_and_memory()
    processor, flags = _processor()
    return {
        "processor": processor,
        "cores": f"{physical or 'unknown'} physical, {os.cpu_count() or 'unknown'} logical",
        "instructions": " ".join(flag for flag in _ISA_FLAGS if flag in flags) or "unknown",
        "memory": f"{memory_bytes / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def versions(packages: Iterable[str] | None = None) -> dict[str, str]:
    """Versions of hwnas and of installed packages, by name.

    Args:
        packages: Which ones; all that hwnas needs if None. Those not installed are left out.
    """
    if packages is None:
        required = [line for line in metadata.requires("hwnas") or [] if "extra ==" not in line]
        packages = sorted(re.split(r"[^\w.-]", line)[0] for line in required)
    found = {"hwnas": hwnas.__version__}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cores_and_memory() -> tuple[int | None, int]:
    """Physical cores, None where they are not known, and bytes of memory."""
    try:
        import psutil
    except ImportError:  # an agent on a small device does without
        return None, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return psutil.cpu_count(logical=False), psutil.virtual_memory().total


def _processor() -> tuple[str, frozenset[str]]:
    """The processor's model and the flags of its instruction set, as far as the system tells."""
    flags = instruction_flags()
    model = cpu_fields().get("model name") or _board() or _apple_processor() or platform.processor()
    return model or platform.machine() or "unknown processor", flags


def _board() -> str:
    """What a small computer calls itself, whose processor has no name."""
    try:
        return Path("/proc/device-tree/model").read_text(errors="replace").strip("\0\n ")
    except OSError:
        return ""


def _apple_processor() -> str:
    if platform.system() != "Darwin":
        return ""
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    if not os.access(command[0], os.X_OK):
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
