"""Detection of out-of-memory errors."""

from __future__ import annotations

import torch

__all__ = ["ran_out_of_memory"]

_SAID = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory: on a GPU by its type, on a CPU by its text."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(each in said for each in _SAID)
