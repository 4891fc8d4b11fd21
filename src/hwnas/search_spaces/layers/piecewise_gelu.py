"""GELU as straight pieces from a table, for circuits and integer units without an error function.

GELU(x) = ReLU(x) - d(|x|) with d(a) = a Phi(-a), since x Phi(x) = x - x Phi(-x). The difference d
is even, below 0.17, and almost 0 from 4 on, so a short table of d describes the whole function.
Edge-MoE (Sarkar et al., ICCAD 2023) uses this form. It looks up d itself; here a table
holds the straight lines between equally spaced points of d, which reaches the same error with fewer
entries.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError

__all__ = [
    "PIECEWISE_GELU_ERROR",
    "GeluKind",
    "PiecewiseGelu",
    "check_gelu",
    "gelu_of",
]

GeluKind = Literal["gelu", "piecewise-gelu"]
"""The exact GELU, or its approximation by straight pieces."""

PIECEWISE_GELU_ERROR = 4e-4
"""Largest absolute error of `PiecewiseGelu` for any finite float32 input.

Between points at a distance h, lines differ from d by at most h^2 / 8 times the largest |d''|,
which is 2 phi(0) = 0.798 at 0: 3.9e-4. Beyond the last point, d is at most d(4) = 1.3e-4.
"""

_PIECES = 64
_END = 4.0  # where the last piece reaches 0


class PiecewiseGelu(nn.Module):
    """ReLU(x) minus a table of straight pieces at |x|: (...) -> (...).

    The error is at most `PIECEWISE_GELU_ERROR`. From 4 on, the function is exactly ReLU. Its
    gradient is that of the pieces.

    Attributes:
        constants: Number of constants in the tables, which are not trained.
    """

    starts: Tensor
    slopes: Tensor
    constants = 2 * (_PIECES + 1)

    def __init__(self) -> None:
        super().__init__()
        step = _END / _PIECES
        points = [_difference(step * i) for i in range(_PIECES)] + [0.0, 0.0]
        slopes = [(after - before) / step for before, after in pairwise(points)]
        at_zero = [points[i] - slope * step * i for i, slope in enumerate(slopes)]
        # They are constants, so they are no part of the saved weights.
        self.register_buffer("starts", torch.tensor(at_zero), persistent=False)
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the approximation of GELU at each x."""
        a = x.abs().clamp(max=_END)
        piece = (a * (_PIECES / _END)).long().clamp(0, _PIECES)  # also in range if x is NaN
        flat = piece.flatten()
        start = self.starts.index_select(0, flat).view(x.shape)
        slope = self.slopes.index_select(0, flat).view(x.shape)
        return x.relu() - (start + slope * a)


def gelu_of(kind: GeluKind) -> nn.Module:
    """Return the module of a kind of GELU."""
    return nn.GELU() if kind == "gelu" else PiecewiseGelu()


def check_gelu(name: str, kind: GeluKind) -> None:
    """Raise if there is no such kind of GELU.

    Args:
        name: Name of the option, for the message.
        kind: Value of the option.
    """
    if kind not in get_args(GeluKind):
        raise ConfigError(
            f"{name} is {kind!r}; expected {' or '.join(map(repr, get_args(GeluKind)))}"
        )


def _difference(a: float) -> float:
    """Return d(a) = a Phi(-a), for a at least 0."""
    return a * 0.5 * math.erfc(a / math.sqrt(2))
