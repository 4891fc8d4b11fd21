"""How many threads arithmetic takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache

import torch
from threadpoolctl import ThreadpoolController

__all__ = ["has_one_thread", "one_thread", "torch_threads"]


@contextlib.contextmanager
def torch_threads(count: int | None = None) -> Iterator[None]:
    """Give torch's arithmetic some threads for a while; afterwards it has as many as before.

    Args:
        count: How many; as many as there are if None, and what is done meanwhile may change that.
    """
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """No second thread for a while, neither of torch nor of NumPy.

    Much that a search does is small: sorting, ranking, matrices of a few hundred rows. A second
    thread makes that twice as slow, and on a busy machine they wait for each other ten times as
    long as they work.
    """
    with torch_threads(1), _libraries().limit(limits=1, user_api="blas"):
        yield


def has_one_thread() -> bool:
    """Return whether torch and NumPy are limited to one thread already."""
    if torch.get_num_threads() > 1:
        return False
    pools = _libraries().select(user_api="blas").info()
    return all(pool["num_threads"] == 1 for pool in pools)


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
