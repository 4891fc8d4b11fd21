"""What an operator is measured at, and what it is measured against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hwnas.kernels.operator import Inputs, Operator
from hwnas.kernels.sizes import dtype_name, sizes_text

__all__ = ["Benchmark", "Case", "Expression", "Rival"]

Expression = tuple[Callable[..., Any], tuple[Tensor, ...]]
"""A function of tensors, and these; what it returns lies as the operator's output does."""


@dataclass(frozen=True)
class Rival:
    """Something else that computes what an operator does.

    Attributes:
        name: In rows.
        words: Its configuration: which functions, which layout, what was made ready beforehand.
        make: From inputs of the operator; weights are laid out and folded here, once.
        compiled: Whether it also runs through ``torch.compile``, as a rival of its own.
        same: Whether it gives the same numbers; one of another type does not, and is not compared.
    """

    name: str
    words: str
    make: Callable[[Inputs], Expression]
    compiled: bool = True
    same: bool = True


@dataclass(frozen=True)
class Benchmark:
    """An operator at the sizes at which it is measured.

    Attributes:
        operator: The operator.
        rivals: Of each one time is measured.
        batches: How many images at once.
        before: What has to run before our kernels and before their reference, so that rivals do not
            do more than these; made from inputs.
    """

    operator: Operator
    rivals: tuple[Rival, ...]
    batches: tuple[int, ...] = (1, 8)
    before: Callable[[Inputs], Callable[[], object]] | None = None

    @property
    def dtype(self) -> torch.dtype:
        """What it is measured in: the only one, or float16."""
        return self.operator.dtypes[0]

    def cases(self) -> list[Case]:
        """All sizes at all batches, small batches first."""
        return [
            Case(self.operator.name, self.operator.at_batch(sizes, batch), batch)
            for batch in self.batches
            for sizes in self.operator.measured
        ]

    def checked(self) -> list[Case]:
        """Those at which an interpreter is fast enough."""
        return [Case(self.operator.name, sizes, 1) for sizes in self.operator.checked[:2]]


@dataclass(frozen=True)
class Case:
    """An operator at some sizes.

    Attributes:
        operator: Its name.
        sizes: Of its inputs.
        batch: Images that these are of.
        dtype: Of its first input, or that of its benchmark if None.
    """

    operator: str
    sizes: Mapping[str, int]
    batch: int
    dtype: torch.dtype | None = None

    def text(self, dtype: torch.dtype) -> str:
        """As ``pointwise float16 b1 images=1,pixels=196``."""
        return f"{self.operator} {dtype_name(dtype)} b{self.batch} {sizes_text(self.sizes)}"
