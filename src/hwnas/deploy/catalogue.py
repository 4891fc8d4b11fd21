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

import psutil

from hwnas.deploy.device import HARDWARE
from hwnas.deploy.runtimes import RUNTIMES

__all__ = ["DeviceStatus", "devices", "machine", "versions"]

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
        usable: Whether it can be measured on this machine.
        reason: Why not and what to install; empty if usable.
        details: Processor, cores, instructions and versions, by name.
    """

    target: str
    usable: bool
    reason: str
    details: Mapping[str, str]


def devices() -> list[DeviceStatus]:
    """Every kind of target that hwnas knows, usable here or not."""
    described = machine()
    found = []
    for hardware in HARDWARE:
        for runtime in RUNTIMES.values():
            reason = runtime.unavailable() or ""
            details = {
                **{key: described[key] for key in ("processor", "cores", "instructions")},
                **versions(runtime.packages),
            }
            found += [
                DeviceStatus(
                    f"{hardware}-{runtime.name}-{number_format}-b{{B}}-t{{T}}",
                    not reason,
                    reason,
                    details,
                )
                for number_format in runtime.formats
            ]
    return found


def machine() -> dict[str, str]:
    """This machine in words: processor, cores, instructions, memory, system and Python."""
    physical, logical = psutil.cpu_count(logical=False), psutil.cpu_count()
    processor, flags = _processor()
    return {
        "processor": processor,
        "cores": f"{physical or 'unknown'} physical, {logical or 'unknown'} logical",
        "instructions": " ".join(flag for flag in _ISA_FLAGS if flag in flags) or "unknown",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
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
    found = {}
    for package in ("hwnas", *packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> tuple[str, frozenset[str]]:
    """The processor's model and the flags of its instruction set, as far as the system tells."""
    fields: dict[str, str] = {}
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    flags = frozenset((fields.get("flags") or fields.get("Features") or "").split())
    model = fields.get("model name") or _apple_processor() or platform.processor()
    return model or platform.machine() or "unknown processor", flags


def _apple_processor() -> str:
    if platform.system() != "Darwin":
        return ""
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    if not os.access(command[0], os.X_OK):
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
