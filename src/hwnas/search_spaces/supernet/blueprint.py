"""Networks without weights: modules with all names and shapes, but without memory for numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["blueprint"]

_INITIALISERS = (
    Tensor.fill_,
    Tensor.normal_,
    Tensor.uniform_,
    Tensor.zero_,
)


class _WithoutInitialisation(TorchFunctionMode):
    """Function mode that skips the initialisation of meta tensors.

    Filling tensors that hold no data takes half the time of a build.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _INITIALISERS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def blueprint() -> Iterator[None]:
    """Create modules on the meta device, without initialisation, inside this context."""
    with torch.device("meta"), _WithoutInitialisation():
        yield
