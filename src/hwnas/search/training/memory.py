"""Whether an error says that memory ran out."""

from __future__ import annotations

import torch

__all__ = ["ran_out_of_memory"]

_SAID = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")


def ran_out_of_memory(error: BaseException) -> bool:
    """On a GPU, where it has a type of its own, or on a CPU, where only its words tell."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(each in said for each in _SAID)
