"""The NVIDIA GPU that a target with the hardware ``cuda`` means, as its driver knows it."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["gpu_handle", "gpu_name"]


def gpu_handle() -> Any:
    """Return the NVML handle of the GPU that CUDA programs of this process use first.

    That is the first of ``CUDA_VISIBLE_DEVICES``, an index or the identifier of a GPU or of an
    instance of one; NVML itself ignores this variable. Indices are those of NVML, which CUDA shares
    if all GPUs are of one model or ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``.

    Returns:
        The handle, or None if there is no such GPU or NVML is not available.
    """
    try:
        import pynvml
    except ImportError:
        return None
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    try:
        pynvml.nvmlInit()
        if first.isdecimal():
            return pynvml.nvmlDeviceGetHandleByIndex(int(first))
        return pynvml.nvmlDeviceGetHandleByUUID(first)
    except pynvml.NVMLError:  # no driver, or no such GPU
        return None


def gpu_name() -> str:
    """Return the name of the GPU as reported by its driver; empty if there is none."""
    if (handle := gpu_handle()) is None:
        return ""
    import pynvml

    try:
        name = pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError:
        return ""
    return name.decode() if isinstance(name, bytes) else str(name)
