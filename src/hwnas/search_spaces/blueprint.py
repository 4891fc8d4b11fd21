"""Networks without weights: all shapes and names, no memory and no numbers."""

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
    """Leaves meta tensors alone; to fill what holds nothing takes half the time of a build."""

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
    """Build modules on the meta device while this is entered."""
    with torch.device("meta"), _WithoutInitialisation():
        yield
