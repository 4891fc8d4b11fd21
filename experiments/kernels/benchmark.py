"""Benchmarks of operators: their sizes and their competing implementations."""

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
"""Function of tensors, and its arguments; its result has the layout of the operator's output."""


@dataclass(frozen=True)
class Rival:
    """Competing implementation of an operator.

    Attributes:
        name: Name in rows.
        words: Description of its configuration: functions, layout, and preparation beforehand.
        make: Function from the operator's inputs to an expression; it lays out and folds weights,
            once.
        compiled: Whether it is also timed through ``torch.compile``, as a competitor of its own.
        same: Whether it computes the same numbers; one of another type does not, and is not
            compared.
    """

    name: str
    words: str
    make: Callable[[Inputs], Expression]
    compiled: bool = True
    same: bool = True


@dataclass(frozen=True)
class Benchmark:
    """Operator with the sizes and the competing implementations of its measurement.

    Attributes:
        operator: The operator.
        rivals: Competing implementations; each is timed.
        batches: Batch sizes.
        before: Function from inputs to work that has to run before our kernels and before their
            reference, so that competitors do not do more than these.
    """

    operator: Operator
    rivals: tuple[Rival, ...]
    batches: tuple[int, ...] = (1, 8)
    before: Callable[[Inputs], Callable[[], object]] | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the measurement: the operator's only type, or float16."""
        return self.operator.dtypes[0]

    def cases(self) -> list[Case]:
        """Return all sizes at all batch sizes, small batches first."""
        return [
            Case(self.operator.name, self.operator.at_batch(sizes, batch), batch)
            for batch in self.batches
            for sizes in self.operator.measured
        ]

    def checked(self) -> list[Case]:
        """Return the cases at which an interpreter is fast enough."""
        return [Case(self.operator.name, sizes, 1) for sizes in self.operator.checked[:2]]


@dataclass(frozen=True)
class Case:
    """Operator at some sizes.

    Attributes:
        operator: Name of the operator.
        sizes: Sizes of its inputs.
        batch: Number of images that the inputs belong to.
        dtype: Data type of the first input; that of the benchmark if None.
    """

    operator: str
    sizes: Mapping[str, int]
    batch: int
    dtype: torch.dtype | None = None

    def text(self, dtype: torch.dtype) -> str:
        """Return a text such as ``pointwise float16 b1 images=1,pixels=196``."""
        return f"{self.operator} {dtype_name(dtype)} b{self.batch} {sizes_text(self.sizes)}"
