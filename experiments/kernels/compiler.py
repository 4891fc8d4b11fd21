"""Compilation of expressions by PyTorch's compiler."""

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
"""Modes of the compiler. They do not use CUDA graphs, since the timer captures the same kind of
graph of all sides."""


def compiled(function: Callable[..., Any], mode: str, place: Place) -> Callable[..., Any]:
    """Compile a function with ``torch.compile``, which compiles at the first call."""
    if place.simulated:
        return torch.compile(function, backend="eager", dynamic=False)
    return torch.compile(function, mode=mode, dynamic=False)


@contextlib.contextmanager
def rehearsing(mode: str) -> Iterator[None]:
    """Let PyTorch's compiler cache the kernels that it compiles, but not its choices among them.

    Rehearsals run in parallel, and the kernel that is fastest beside others may not be so alone.
    """
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    chooses = mode == FULL  # the caches of whole programs hold the choices
    with (
        inductor.patch(autotune_local_cache=False, fx_graph_cache=not chooses),
        functorch.patch(enable_autograd_cache=not chooses),
    ):
        yield


@contextlib.contextmanager
def all_cores(place: Place) -> Iterator[None]:
    """Let PyTorch's compiler use all cores, where it was not rehearsed."""
    from torch._inductor import config as inductor

    with inductor.patch(compile_threads=place.workers):
        yield
