"""Device that networks are trained and evaluated on: a GPU that was reserved for it, or the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch

from hwnas.errors import DeviceError

__all__ = ["UNUSABLE", "device_here", "on_device", "reserved_device", "working_device"]

UNUSABLE = (
    "Ray reserved a GPU for a worker, but PyTorch finds none there; install PyTorch with support "
    "for that GPU, or set compute.gpus_per_worker = 0"
)
"""Message about a GPU of a cluster that PyTorch cannot use."""

_CPU = torch.device("cpu")
_DEVICE = ContextVar("device", default=_CPU)
_UNTESTED = ("mps",)  # it has no float64


def working_device() -> torch.device:
    """Return the device on which this code should train or evaluate a network.

    It is the CPU, unless the caller is within `on_device`: executors call an evaluator there.
    """
    return _DEVICE.get()


@contextlib.contextmanager
def on_device(device: torch.device | str) -> Iterator[None]:
    """Make a device the `working_device` within a context."""
    token = _DEVICE.set(torch.device(device))
    try:
        yield
    finally:
        _DEVICE.reset(token)


def reserved_device() -> torch.device:
    """Return the device of this Ray worker: the GPU that Ray reserved for it, or else the CPU.

    Raises:
        DeviceError: Ray reserved a GPU, but PyTorch finds none.
    """
    import ray

    if not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        return _CPU
    found = _accelerator()
    if found is None:
        raise DeviceError(UNUSABLE)
    return found


def device_here(gpus: float | None) -> torch.device:
    """Return the device for work in this process, which has no reservation.

    Args:
        gpus: GPUs that the recipe gives a worker: 0 for the CPU; otherwise a GPU, if PyTorch finds
            one.
    """
    return _CPU if gpus == 0 else _accelerator() or _CPU


def _accelerator() -> torch.device | None:
    """Return the first GPU that PyTorch finds, of any maker; Ray hides those of other workers."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type in _UNTESTED:
        return None
    return torch.device(found.type, 0)
