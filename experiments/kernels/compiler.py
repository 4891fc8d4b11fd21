"""What PyTorch's compiler makes of an expression."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from experiments.kernels.place import Place

__all__ = ["FULL", "MODES", "QUICK", "all_cores", "compiled", "rehearsing"]

QUICK, FULL = "default", "max-autotune-no-cudagraphs"
MODES = {
    QUICK: "torch.compile",
    FULL: "torch.compile(mode='max-autotune-no-cudagraphs')",
}
"""Without graphs of its own, since the timer makes the same graph of all sides."""


def compiled(function: Callable[..., Any], mode: str, place: Place) -> Callable[..., Any]:
    """What ``torch.compile`` makes of a function; it is compiled at the first call."""
    if place.simulated:
        return torch.compile(function, backend="eager", dynamic=False)
    return torch.compile(function, mode=mode, dynamic=False)


@contextlib.contextmanager
def rehearsing(mode: str) -> Iterator[None]:
    """Let PyTorch's compiler keep kernels that it compiles, but not which it finds faster.

    Rehearsals run side by side, and what is found faster beside others may not be.
    """
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    chooses = mode == FULL  # of whole programs, which hold the choices
    with (
        inductor.patch(autotune_local_cache=False, fx_graph_cache=not chooses),
        functorch.patch(enable_autograd_cache=not chooses),
    ):
        yield


@contextlib.contextmanager
def all_cores(place: Place) -> Iterator[None]:
    """Let PyTorch's compiler have them, where it was not rehearsed."""
    from torch._inductor import config as inductor

    with inductor.patch(compile_threads=place.workers):
        yield
