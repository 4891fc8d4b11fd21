"""What every runtime checks before it loads anything."""

from __future__ import annotations

import os
from importlib.util import find_spec

from hwnas.deploy.device import HARDWARE, Target
from hwnas.errors import DeviceError

__all__ = ["check_usable", "missing_package"]


def missing_package(package: str, install: str) -> str | None:
    """Why a runtime cannot be used and what to install, or None if its package is there."""
    if find_spec(package) is None:
        return f"{package} is not installed; run: pip install {install}"
    return None


def check_usable(reason: str | None, target: Target) -> None:
    """Refuse a target that this machine cannot be.

    Args:
        reason: Why the runtime cannot be used, or None.
        target: What is wanted.

    Raises:
        DeviceError: There is a reason, the target is another machine, or it has more threads than
            this one has cores.
    """
    if not target.device.is_here:
        raise DeviceError(
            f"target {target.name} is not this machine; only latency is measured on devices "
            f"elsewhere, so give a target of {', '.join(HARDWARE)}"
        )
    if reason is not None:
        raise DeviceError(reason)
    cores = os.cpu_count() or 1
    if target.device.threads > cores:
        raise DeviceError(
            f"target {target.name} has {target.device.threads} threads and this machine "
            f"{cores} logical cores; choose a target with -t{cores} or less"
        )
