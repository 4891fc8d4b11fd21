"""Activation functions in kernels, on float32 values, and the same functions in PyTorch.

NaN stays NaN, as in PyTorch; ``tl.maximum`` would not guarantee that.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from hwnas.errors import KernelError

__all__ = ["ACTIVATIONS", "activate", "activated", "check_activation"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "hard_swish": functional.hardswish,
    "hard_sigmoid": functional.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
}


def check_activation(name: str, of: str = "activation") -> None:
    """Raise if a name is not one of `ACTIVATIONS`.

    Args:
        name: Name to check.
        of: Description of the name in the message, such as the parameter that it was given for.

    Raises:
        KernelError: The name is unknown.
    """
    if name not in ACTIVATIONS:
        raise KernelError(f"{of} {name!r} is not one of {', '.join(ACTIVATIONS)}")


def activated(
    total: Tensor, residual: Tensor | None, activation: str, residual_first: bool
) -> Tensor:
    """Return activation(total) + residual, or activation(total + residual), in PyTorch."""
    if residual is None:
        return ACTIVATIONS[activation](total)
    if residual_first:
        return ACTIVATIONS[activation](total + residual)
    return ACTIVATIONS[activation](total) + residual


@triton.jit
def activate(x, NAME: tl.constexpr):
    """Return an activation of x, a block of float32, by its name in `ACTIVATIONS`."""
    if NAME == "relu":
        return tl.where(x < 0, 0.0, x)
    elif NAME == "relu6":
        return _clamped(x, 6.0)
    elif NAME == "hard_swish":
        return x * _clamped(x + 3.0, 6.0) / 6.0
    elif NAME == "hard_sigmoid":
        return _clamped(x + 3.0, 6.0) / 6.0
    elif NAME == "sigmoid":
        return tl.sigmoid(x)
    elif NAME == "silu":
        return x * tl.sigmoid(x)
    elif NAME == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        tl.static_assert(NAME == "none", "not one of ACTIVATIONS")
        return x


@triton.jit
def _clamped(x, HIGH: tl.constexpr):
    return tl.where(x < 0, 0.0, tl.where(x > HIGH, HIGH, x))
