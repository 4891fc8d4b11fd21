"""How many threads torch takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["one_thread"]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """No second thread for a while.

    Sorting and ranking have one anyway. Others gain little beside that, and on a busy machine they
    wait for each other ten times as long as they work.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
