"""Choice of kernel or PyTorch for operators, and comparison of their measured times.

No other module of the matching reads measured times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hwnas.kernels.operator import Operator, Sizes
from hwnas.kernels.tuning.choice import KernelChoice
from hwnas.kernels.tuning.tuned import REFERENCE

__all__ = ["Decide", "decided", "is_slower"]

Decide = Callable[[Operator, Sizes, torch.dtype], KernelChoice]
"""Function of an operator, the sizes of its inputs and the dtype of the first input.

It returns the kernels' configuration, and whether the kernels or PyTorch compute the operator.
"""


def decided(operator: Operator, sizes: Sizes, dtype: torch.dtype) -> KernelChoice:
    """Return the choice measured on this machine's GPU, or the operator's default configuration."""
    return operator.choice(sizes, dtype, _device())


def is_slower(
    one: Sequence[tuple[KernelChoice, Sizes]], other: Sequence[tuple[KernelChoice, Sizes]]
) -> bool:
    """Return whether operators were measured to take longer together than other operators.

    Only times measured at exactly these sizes are compared. If one is missing, the result is False.

    Args:
        one: Choices, each with the sizes that it was made for.
        other: Choices to compare with, in the same form.
    """
    times = [[_time_us(*each) for each in side] for side in (one, other)]
    known = [[time for time in side if time is not None] for side in times]
    return known == times and bool(other) and sum(known[0]) > sum(known[1])


def _device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def _time_us(choice: KernelChoice, sizes: Sizes) -> float | None:
    entry = choice.entry
    if entry is None or dict(entry.sizes) != dict(sizes):
        return None
    return (entry.times if choice.kernel else entry.rivals[REFERENCE]).p50_us
