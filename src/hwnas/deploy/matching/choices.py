"""Choice of kernel or PyTorch for operators, and comparison of their measured times.

No other module of the matching reads measured times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.operator import Inputs, Operator, Sizes
from hwnas.kernels.sizes import sizes_text
from hwnas.kernels.tuning.choice import KernelChoice
from hwnas.kernels.tuning.roofline import LaunchWork
from hwnas.kernels.tuning.tuned import REFERENCE

__all__ = ["Decide", "Decided", "decided", "is_slower", "reason_against"]

Decide = Callable[[Operator, Sizes, torch.dtype], KernelChoice]
"""Function of an operator, the sizes of its inputs and the dtype of the first input.

It returns the kernels' configuration, and whether the kernels or PyTorch compute the operator.
"""
_USUAL = ACCELERATORS["nvidia-h200"]  # for predictions on machines without a GPU


@dataclass(frozen=True)
class Decided:
    """Operator with the choice that was made for it.

    Attributes:
        operator: Operator.
        inputs: Its inputs, on the device ``meta``.
        choice: Choice for the sizes of these inputs.
    """

    operator: Operator
    inputs: Inputs
    choice: KernelChoice

    @property
    def sizes(self) -> Sizes:
        """Sizes of the inputs."""
        return self.operator.sizes(self.inputs)

    @property
    def time_us(self) -> float | None:
        """Median time that was measured at exactly these sizes, in microseconds, or None."""
        entry = self.choice.entry
        if entry is None or dict(entry.sizes) != dict(self.sizes):
            return None
        return (entry.times if self.choice.kernel else entry.rivals[REFERENCE]).p50_us

    @property
    def predicted_ms(self) -> float:
        """Time of the kernels on an H200 by a roofline model, in milliseconds."""
        return LaunchWork.of(self.operator, self.inputs, self.choice.config, _USUAL).milliseconds


def decided(operator: Operator, sizes: Sizes, dtype: torch.dtype) -> KernelChoice:
    """Return the choice measured on this machine's GPU, or the operator's default configuration."""
    return operator.choice(sizes, dtype, _device())


def is_slower(one: Sequence[Decided], other: Sequence[Decided]) -> bool:
    """Return whether operators were measured to take longer together than other operators.

    Only times measured at exactly these sizes are compared. If one is missing, the result is False.
    """
    times, others = _total_us(one), _total_us(other)
    return times is not None and others is not None and bool(other) and times > others


def reason_against(new: Sequence[Decided], old: Sequence[Decided]) -> str:
    """Return why operators should not replace others that compute the same; empty if they should.

    A plan of kernels decides, if there is one. Otherwise times decide that were measured at exactly
    these sizes. If nothing at all was measured, as on a machine without a GPU, a roofline model
    decides.

    Args:
        new: Operators, of which the last is only useful where its kernels run.
        old: Operators that they would replace; none if PyTorch has a layer of its own for it.
    """
    last, every = new[-1], (*new, *old)
    name = last.operator.name
    if not last.choice.kernel:
        return f"{name} was not measured to be faster at {sizes_text(last.sizes)}"
    if not old or last.choice.planned:
        return ""
    if all(each.choice.entry is None for each in every):
        faster = sum(each.predicted_ms for each in new) < sum(each.predicted_ms for each in old)
        return "" if faster else f"{name} is not predicted to be faster"
    untimed = next((each for each in every if each.time_us is None), None)
    if untimed is not None:
        return f"{name} cannot be compared: {untimed.operator.name} was not measured at " + (
            sizes_text(untimed.sizes)
        )
    if is_slower(old, new):
        return ""
    return f"{name} was not measured to be faster at {sizes_text(last.sizes)}"


def _device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def _total_us(operators: Sequence[Decided]) -> float | None:
    """Return the sum of the measured times in microseconds, or None if one is missing."""
    known = [each.time_us for each in operators]
    return None if None in known else sum(time for time in known if time is not None)
