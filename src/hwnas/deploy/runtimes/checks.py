"""Checks that every runtime makes before it loads anything."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

from hwnas.deploy.runtimes.runtime import Runtime
from hwnas.deploy.targets.target import HARDWARE, Target
from hwnas.errors import DeviceError

__all__ = ["check_usable", "missing_compiler", "missing_package"]


def missing_package(package: str, install: str) -> str | None:
    """Return why a runtime cannot be used and what to install, or None if its package is there."""
    if find_spec(package) is None:
        return f"{package} is not installed; run: pip install {install}"
    return None


def missing_compiler() -> str | None:
    """Return why nothing can be compiled here, or None if there is a C++ compiler."""
    named = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++"]
    if not any(map(shutil.which, named)):
        return f"there is no C++ compiler ({' or '.join(named)}); run: apt-get install g++"
    return None


def check_usable(runtime: Runtime, target: Target) -> None:
    """Check that a target can be used on this machine.

    Args:
        runtime: Runtime of the target.
        target: Target to check.

    Raises:
        DeviceError: The runtime cannot be used, the target is another machine, or it has more
            threads than this machine has cores.
    """
    if not target.device.is_here:
        raise DeviceError(
            f"target {target.name} is not this machine; only latency can be measured on remote "
            f"devices, so give a target with {', '.join(HARDWARE)}"
        )
    if (reason := runtime.unavailable(target.device.hardware)) is not None:
        raise DeviceError(f"{runtime.name} cannot be used: {reason}")
    cores = os.cpu_count() or 1
    if target.device.threads > cores:
        raise DeviceError(
            f"target {target.name} has {target.device.threads} threads, but this machine has "
            f"{cores} logical cores; choose a target with -t{cores} or less"
        )
