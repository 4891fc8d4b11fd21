"""Sparsity structures: which weights of a layer can only be pruned together.

All structures divide the matrix of a layer into units, rectangles of neighbouring weights that are
kept or pruned as one. A structure may also fix how many units stay in each group of neighbours. The
matrix of a convolution is its product with patches of its input; neighbouring columns are
neighbouring channels of the same position in the kernel, since sparse cores multiply these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod

import torch
from torch import Tensor

from hwnas.errors import ConfigError

__all__ = ["UNSTRUCTURED", "Structure", "matrix_of", "weight_of"]

UNSTRUCTURED = "unstructured"
_GROUPS, _BLOCKS = re.compile(r"(\d{1,3})of(\d{1,3})"), re.compile(r"block(\d{1,4})x(\d{1,4})")
_DENSITY = 0.5  # if none is given
_BLOCK_PLACE_BITS = 32  # of the position of a block


def matrix_of(weight: Tensor) -> Tensor:
    """Return weights (C_out, C_in, ...) as a matrix (C_out, inputs), channels innermost."""
    return weight.movedim(1, -1).reshape(weight.shape[0], -1)


def weight_of(matrix: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the weights (C_out, C_in, ...) of a matrix, the inverse of `matrix_of`."""
    outputs, inputs, *kernel = shape
    return matrix.reshape(outputs, *kernel, inputs).movedim(-1, 1).contiguous()


@dataclass(frozen=True)
class Structure:
    """Sparsity structure of matrices (outputs, inputs).

    Attributes:
        name: ``"unstructured"`` for single weights; ``"2of4"`` for two of each four neighbours
            along the inputs, or other numbers; ``"block16x32"`` for blocks of 16 inputs and 32
            outputs, or other sizes, as operator ``block_sparse`` multiplies them.
        inputs: Inputs of a unit.
        outputs: Outputs of a unit.
        kept: Units kept in each group; 0 if the structure does not fix it.
        group: Units of a group, neighbours along the inputs; 0 if there are no groups.
    """

    name: str = UNSTRUCTURED
    inputs: int = 1
    outputs: int = 1
    kept: int = 0
    group: int = 0

    def __post_init__(self) -> None:
        if min(self.inputs, self.outputs) < 1 or not 0 <= self.kept <= self.group:
            raise ConfigError(f"structure {self.name} is impossible; {_expected()}")
        if self.group and not self.kept:
            raise ConfigError(f"structure {self.name} keeps no weight; {_expected()}")

    @classmethod
    def parse(cls, name: str) -> Structure:
        """Return the structure of a name.

        Raises:
            ConfigError: No structure has this name.
        """
        if name == UNSTRUCTURED:
            return cls()
        if found := _GROUPS.fullmatch(name):
            return cls(name, kept=int(found[1]), group=int(found[2]))
        if found := _BLOCKS.fullmatch(name):
            return cls(name, inputs=int(found[1]), outputs=int(found[2]))
        raise ConfigError(f"unknown sparsity structure {name!r}; {_expected()}")

    @property
    def free(self) -> bool:
        """True if layers can have any density; False if the structure fixes it."""
        return not self.group

    @property
    def blocks(self) -> bool:
        """True if units have several weights."""
        return self.inputs * self.outputs > 1

    def density(self, wanted: float | None) -> float:
        """Return the share of weights that stay; half of them if the user names no share.

        Raises:
            ConfigError: The share is not in (0, 1], or the structure has another.
        """
        if self.free:
            share = _DENSITY if wanted is None else wanted
            if not 0 < share <= 1:
                raise ConfigError(f"density is {share:g}; expected more than 0 and at most 1")
            return share
        fixed = self.kept / self.group
        if wanted is not None and abs(wanted - fixed) > 1e-9:
            raise ConfigError(
                f"density is {wanted:g}, but structure {self.name} keeps exactly {fixed:g} of the "
                "weights; leave the density out, or choose unstructured or blocks"
            )
        return fixed

    def fits(self, outputs: int, inputs: int) -> bool:
        """Return whether a matrix consists of whole groups or units, and of more than one."""
        across = self.group or self.inputs
        whole = outputs % self.outputs == 0 and inputs % across == 0
        return whole and outputs * inputs > self.outputs * self.inputs

    def fits_weight(self, shape: Sequence[int]) -> bool:
        """Return whether the matrix of weights (C_out, C_in, ...) fits."""
        outputs, channels, *kernel = shape
        # Groups do not reach across positions of a kernel.
        return self.fits(outputs, channels if self.group else channels * prod(kernel))

    def place_bits(self, weights: int, kept: int) -> float:
        """Return the bits that the positions of the kept weights take.

        They are log2(M), rounded up, for each kept weight of N in M, 32 for each block, and
        otherwise one for each weight, kept or not.

        Args:
            weights: Number of weights of a matrix that fits.
            kept: How many of them stay.
        """
        if self.group:
            return kept * ceil(log2(self.group))
        if self.blocks:
            return kept / (self.inputs * self.outputs) * _BLOCK_PLACE_BITS
        return weights

    def per_unit(self, scores: Tensor) -> Tensor:
        """Return the sum of scores (outputs, inputs) in each unit: (rows, columns) of units."""
        rows, columns = scores.shape[0] // self.outputs, scores.shape[1] // self.inputs
        return scores.reshape(rows, self.outputs, columns, self.inputs).sum((1, 3))

    def per_weight(self, units: Tensor) -> Tensor:
        """Return the value of its unit for each weight: (outputs, inputs)."""
        return units.repeat_interleave(self.outputs, 0).repeat_interleave(self.inputs, 1)

    def count(self, outputs: int, inputs: int, density: float) -> int:
        """Return the number of units that stay in a matrix that fits, at least one."""
        units = outputs * inputs // (self.outputs * self.inputs)
        return units * self.kept // self.group if self.group else max(1, round(density * units))

    def mask(self, scores: Tensor, density: float) -> Tensor:
        """Return the mask of the units with the highest scores.

        Args:
            scores: Scores of units (rows, columns).
            density: Share of weights that stay, as from `density`.

        Returns:
            Mask of the weights (outputs, inputs), bool, with exactly `count` units.
        """
        rows, columns = scores.shape
        if self.group:
            grouped, kept = scores.reshape(-1, self.group), self.kept
        else:
            kept = self.count(rows * self.outputs, columns * self.inputs, density)
            grouped = scores.reshape(1, -1)
        best = grouped.topk(kept, dim=1).indices
        units = torch.zeros_like(grouped, dtype=torch.bool).scatter_(1, best, True)
        return self.per_weight(units.reshape(rows, columns))


def _expected() -> str:
    return "expected unstructured, N of M weights such as 2of4, or blocks such as block16x16"
