"""Description of this machine: its processors, its system and what is installed."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import hwnas
from hwnas.deploy.agent.client.added_devices import read_added
from hwnas.deploy.targets.gpu import gpu_name
from hwnas.deploy.targets.processor import cpu_fields, instruction_flags
from hwnas.deploy.targets.target import BROWSER

__all__ = ["machine", "processor_of", "versions"]

_ISA_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
"""Instruction set flags that decide how fast a processor multiplies low-precision numbers."""


def processor_of(hardware: str) -> str:
    """Return the name of the processor or GPU of some hardware; empty if it is not known.

    For an added device, this is the name that was recorded when the device was added.
    """
    if hardware in ("cuda", BROWSER):
        return gpu_name() if hardware == "cuda" else ""
    return machine()["processor"] if hardware == "cpu" else read_added(hardware).processor


def machine() -> dict[str, str]:
    """Return this machine's processor, cores, instructions, memory, system and Python, as text."""
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
    """Return the versions of hwnas and of installed packages, by name.

    Args:
        packages: Packages to report; all that hwnas requires if None. Packages that are not
            installed are left out.
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
    """Return the number of physical cores, None if unknown, and the bytes of memory."""
    try:
        import psutil
    except ImportError:  # an agent on a small device may lack psutil
        return None, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return psutil.cpu_count(logical=False), psutil.virtual_memory().total


def _processor() -> tuple[str, frozenset[str]]:
    """Return the processor's model and instruction set flags, as far as the system reports them."""
    flags = instruction_flags()
    model = cpu_fields().get("model name") or _board() or _apple_processor() or platform.processor()
    return model or platform.machine() or "unknown processor", flags


def _board() -> str:
    """Return the model of a single-board computer, whose processor has no name."""
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
