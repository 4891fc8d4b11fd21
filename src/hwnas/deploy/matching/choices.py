"""What is known of the speed of operators: the one place where that is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hwnas.kernels.choice import Choice
from hwnas.kernels.operator import Operator, Sizes
from hwnas.kernels.tuned import REFERENCE

__all__ = ["Decide", "decided", "is_slower"]

Decide = Callable[[Operator, Sizes, torch.dtype], Choice]
"""Decides for an operator, sizes of its inputs and the type of the first one."""


def decided(operator: Operator, sizes: Sizes, dtype: torch.dtype) -> Choice:
    """What was measured on this machine's card, or the operator's default configuration."""
    return operator.choice(sizes, dtype, _device())


def is_slower(one: Sequence[tuple[Choice, Sizes]], other: Sequence[tuple[Choice, Sizes]]) -> bool:
    """Whether some operators together were measured to take longer than others.

    Only times at exactly these sizes are compared; where one is missing nothing is known.

    Args:
        one: Choices, each with the sizes that it was made for.
        other: Likewise.
    """
    times = [[_time_us(*each) for each in side] for side in (one, other)]
    known = [[time for time in side if time is not None] for side in times]
    return known == times and bool(other) and sum(known[0]) > sum(known[1])


def _device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def _time_us(choice: Choice, sizes: Sizes) -> float | None:
    entry = choice.entry
    if entry is None or dict(entry.sizes) != dict(sizes):
        return None
    return (entry.times if choice.kernel else entry.rivals[REFERENCE]).p50_us
