"""Limits on the number of threads of PyTorch and NumPy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache

import torch
from threadpoolctl import ThreadpoolController

__all__ = ["has_one_thread", "one_thread", "torch_threads"]


@contextlib.contextmanager
def torch_threads(count: int | None = None) -> Iterator[None]:
    """Set the number of PyTorch threads within a context, and restore the earlier number on exit.

    Args:
        count: Number of threads; None keeps the present number, and only restores it on exit if the
            code within the context has changed it.
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
    """Limit PyTorch and NumPy to one thread within a context.

    Many operations of a search are small: sorting, ranking, matrices of a few hundred rows. With a
    second thread they take twice as long, and on a busy machine the threads wait for each other ten
    times as long as they work.
    """
    with torch_threads(1), _libraries().limit(limits=1, user_api="blas"):
        yield


def has_one_thread() -> bool:
    """Return whether PyTorch and NumPy are limited to one thread already."""
    if torch.get_num_threads() > 1:
        return False
    pools = _libraries().select(user_api="blas").info()
    return all(pool["num_threads"] == 1 for pool in pools)


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
