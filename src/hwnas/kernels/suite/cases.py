"""Cases of the kernel suite and benchmark: operators, each at one type and one choice of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Generator

from hwnas.errors import ConfigError
from hwnas.kernels.operator import Config, Inputs, Operator, Sizes, dtype_name
from hwnas.kernels.sizes import dtype_read, sizes_text
from hwnas.plugin import closest

__all__ = ["Case"]


@dataclass(frozen=True)
class Case:
    """Operator at one type and one choice of sizes.

    Attributes:
        name: Name among all operators.
        operator: Operator of that name.
        dtype: Type of the first input.
        sizes: Sizes of the inputs.
    """

    name: str
    operator: Operator
    dtype: torch.dtype
    sizes: Sizes

    @property
    def config(self) -> Config:
        """Default configuration of the operator."""
        return self.operator.default_config(self.sizes, self.dtype)

    def __str__(self) -> str:
        """Return a text such as ``pointwise float16 images=1,pixels=49``."""
        return f"{self.name} {dtype_name(self.dtype)} {sizes_text(self.sizes)}"

    def example(self, device: torch.device, seed: int) -> Inputs:
        """Return random inputs."""
        generator = Generator().manual_seed(seed)
        return self.operator.example(self.sizes, self.dtype, generator, device)

    def to_json(self) -> dict[str, object]:
        """Return the first columns of a row; ``shape`` has the values of ``sizes``, in order."""
        sizes = dict(self.sizes)
        return {
            "op": self.name,
            "dtype": dtype_name(self.dtype),
            "shape": list(sizes.values()),
            "sizes": sizes,
        }

    @classmethod
    def all(cls, operators: Mapping[str, Operator], only: Sequence[str] = ()) -> list[Case]:
        """Return each operator at each of its types and at each of its checked sizes.

        Args:
            operators: Operators by name.
            only: Names of the requested operators; all if empty.

        Raises:
            ConfigError: There is no operator of such a name.
        """
        return [
            cls(name, operator, dtype, sizes)
            for name, operator in _wanted(operators, only).items()
            for dtype in operator.dtypes
            for sizes in operator.checked
        ]

    @classmethod
    def measured(
        cls,
        operators: Mapping[str, Operator],
        only: Sequence[str] = (),
        dtype: str | None = None,
        batches: Sequence[int] = (1,),
    ) -> list[Case]:
        """Return each operator at its sizes in searched networks.

        Args:
            operators: Operators by name.
            only: Names of the requested operators; all that take the type if empty.
            dtype: Type of the first input; the first type of each operator if None.
            batches: Batch sizes.

        Raises:
            ConfigError: There is no operator of such a name, or it does not take the type.
        """
        wanted = _wanted(operators, only)
        taken = {dtype_name(each) for operator in wanted.values() for each in operator.dtypes}
        if not only and dtype and dtype not in taken:
            raise ConfigError(f"no operator takes {dtype!r}; {closest(dtype, taken)}")
        return [
            cls(name, operator, kind, operator.at_batch(sizes, batch))
            for name, operator in wanted.items()
            if only or dtype in (None, *map(dtype_name, operator.dtypes))
            for kind in [dtype_read(operator, dtype, name) if dtype else operator.dtypes[0]]
            for batch in batches
            for sizes in operator.measured
        ]


def _wanted(operators: Mapping[str, Operator], only: Sequence[str]) -> dict[str, Operator]:
    for name in only:
        if name not in operators:
            raise ConfigError(f"unknown operator {name!r}; {closest(name, operators)}")
    return {name: each for name, each in operators.items() if not only or name in only}
