"""Refinement of a pruned layer by block coordinate descent over masks and weights.

It follows iCBS (Rosenberg et al., "Scalable iterative pruning of large language and vision models
using block coordinate descent", 2024): of a few weights at a time, the best choice of those that
stay is found, with all others fixed. The objective here is the squared error of the layer's outputs
instead of an estimate of the network's loss. Blocks are so small that all choices are compared, and
each choice comes with its best weights, so that the objective falls in every step or stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hwnas.deploy.sparsity.criteria import PrunedMatrix
from hwnas.deploy.sparsity.hessian import InputHessian
from hwnas.deploy.sparsity.reconstruction import reconstructed
from hwnas.search_spaces.layers.sparsity_structure import Structure

__all__ = ["Refined", "refine"]

_TRUNCATED = 1e-8  # least eigenvalue, over the largest, that an inverse takes into account
_SINGLE, _BLOCKS = 6, 4  # units whose choices are compared at a time: 64 and 16 choices


@dataclass(frozen=True, eq=False)
class Refined:
    """Refined matrix.

    Attributes:
        pruned: Weights and their mask, of the same structure and density as before.
        errors: Squared error of the outputs before the first and after each sweep; it never rises.
            The sweeps end early where one would gain less than its rounding errors cost.
    """

    pruned: PrunedMatrix
    errors: tuple[float, ...]


@torch.no_grad()
def refine(
    dense: Tensor,
    pruned: PrunedMatrix,
    hessian: InputHessian,
    structure: Structure,
    sweeps: int = 3,
    seed: int = 0,
) -> Refined:
    """Exchange units of a pruned layer, and change its weights, to lower the error of its outputs.

    Each row of units keeps as many units as it has.

    Args:
        dense: Weights before pruning, (outputs, inputs).
        pruned: Weights and mask to start from.
        hessian: Moments of the inputs.
        structure: Structure of the mask.
        sweeps: Number of times that every unit is reconsidered.
        seed: Seed of the units that are considered together; unused for groups, which are fixed.
    """
    descent = _Descent(dense, pruned, hessian, structure)
    found, errors = descent.pruned, [descent.error]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(sweeps):
        for columns in _together(structure, dense.shape[1], generator):
            descent.improve(columns)
        descent.fit()
        if descent.error > errors[-1]:  # rounding, if the inputs are fewer than the weights
            break
        found = descent.pruned
        errors.append(descent.error)
    return Refined(found, tuple(errors))


def _together(structure: Structure, inputs: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield columns of units whose choices are compared, such that each unit has its turn."""
    columns = inputs // structure.inputs
    if structure.group:
        yield from torch.split(torch.arange(columns), structure.group)
    else:
        count = _BLOCKS if structure.blocks else _SINGLE
        yield from torch.split(torch.randperm(columns, generator=generator), count)


class _Descent:
    """State of the descent: weights, mask, and the gradient of the error."""

    def __init__(
        self, dense: Tensor, pruned: PrunedMatrix, hessian: InputHessian, structure: Structure
    ) -> None:
        self._dense, self._hessian, self._structure = dense.double(), hessian, structure
        self._weights, self._mask = pruned.matrix.double().clone(), pruned.mask.clone()
        self._type = dense.dtype
        self._gradient = (self._dense - self._weights) @ hessian.moments

    @property
    def error(self) -> float:
        return self._hessian.error(self._dense - self._weights)

    @property
    def pruned(self) -> PrunedMatrix:
        return PrunedMatrix(self._weights.to(self._type, copy=True), self._mask.clone())

    def fit(self) -> None:
        """Fit all weights under the current mask."""
        self._weights = reconstructed(self._dense, self._weights, self._mask, self._hessian)
        self._gradient = (self._dense - self._weights) @ self._hessian.moments

    def improve(self, columns: Tensor) -> None:
        """Choose anew which units of some columns stay, in each row of units, and their weights."""
        wide, moments = self._structure.inputs, self._hessian.moments
        places = (columns[:, None] * wide + torch.arange(wide)).reshape(-1)
        within = moments[places][:, places]
        current = self._weights[:, places]
        linear = self._gradient[:, places] + current @ within
        choices = torch.tensor(list(itertools.product((False, True), repeat=len(columns))))
        kept = choices.repeat_interleave(wide, 1)  # (choices, weights of a row)
        found = linear @ _restricted_inverses(within, kept)  # (choices, outputs, weights)
        # The error falls by v . (2 linear - v H) for weights v in place of zeros.
        gains = self._by_row((found * (2 * linear - found @ within)).sum(2))
        before = self._by_row((current * (2 * linear - current @ within)).sum(1)[None])
        stay = self._mask[:: self._structure.outputs][:, places[::wide]].sum(1)
        gains[choices.sum(1)[:, None] != stay] = -torch.inf
        gain, best = gains.max(0)
        rows = (gain > before[0]).repeat_interleave(self._structure.outputs)
        best = best.repeat_interleave(self._structure.outputs)[rows]
        where = rows.nonzero()
        change = found[best, where[:, 0]] - current[rows]
        self._weights[where, places] += change
        self._mask[where, places] = kept[best]
        self._gradient[rows] -= change @ moments[places]

    def _by_row(self, values: Tensor) -> Tensor:
        """Return the sum of values (choices, outputs) over the outputs of each row of units."""
        return values.reshape(len(values), -1, self._structure.outputs).sum(2)


def _restricted_inverses(moments: Tensor, kept: Tensor) -> Tensor:
    """Return the inverse of moments among kept weights, zero elsewhere: (choices, K, K)."""
    both = (kept[:, :, None] & kept[:, None, :]).to(moments)
    apart = torch.diag_embed((~kept).to(moments))
    # Inputs that are always zero, or the same as others, have no inverse; any solution serves.
    inverses: Tensor = torch.linalg.pinv(moments * both + apart, rtol=_TRUNCATED, hermitian=True)
    return inverses * both
