"""Pruning criteria: which weights of one layer go, and what the remaining ones become."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from hwnas.deploy.sparsity.hessian import InputHessian, damped_inverse
from hwnas.deploy.sparsity.reconstruction import reconstructed
from hwnas.search_spaces.layers.sparsity_structure import Structure

__all__ = ["CRITERIA", "Criterion", "Magnitude", "PrunedMatrix", "SecondOrder", "Wanda"]

_ROUNDS = 4


@dataclass(frozen=True, eq=False)
class PrunedMatrix:
    """Matrix of a layer after pruning.

    Attributes:
        matrix: Weights (outputs, inputs), zero where pruned.
        mask: Mask of the weights that stay, bool, same shape.
    """

    matrix: Tensor
    mask: Tensor


class Criterion(Protocol):
    """Way to prune the matrix of one layer to a structure and a density."""

    @property
    def name(self) -> str:
        """Name in the names of variants."""

    def prune(
        self, matrix: Tensor, hessian: InputHessian, structure: Structure, density: float
    ) -> PrunedMatrix:
        """Prune a matrix.

        Args:
            matrix: Weights (outputs, inputs), which the structure fits.
            hessian: Moments of the inputs on calibration images.
            structure: Structure of the zeros.
            density: Share of weights that stay, as from `Structure.density`.
        """


@dataclass(frozen=True)
class Magnitude:
    """Units with the largest sum of squared weights stay, unchanged."""

    name: str = "magnitude"

    def prune(
        self, matrix: Tensor, hessian: InputHessian, structure: Structure, density: float
    ) -> PrunedMatrix:
        """Prune a matrix; the inputs do not matter."""
        mask = structure.mask(structure.per_unit(matrix.square()), density)
        return PrunedMatrix(matrix * mask, mask)


@dataclass(frozen=True)
class Wanda:
    """Weights with the largest product with their input's norm stay, unchanged.

    It follows Sun et al., "A simple and effective pruning approach for large language models" (ICLR
    2024), where weights compete within their output (row). For blocks, the squares of a block's
    products are added up, and blocks compete within their row of blocks.
    """

    name: str = "wanda"

    def prune(
        self, matrix: Tensor, hessian: InputHessian, structure: Structure, density: float
    ) -> PrunedMatrix:
        """Prune a matrix; rows keep equally many units, or one more where these do not divide."""
        energy = matrix.square() * hessian.moments.diagonal().to(matrix)
        units = structure.per_unit(energy)
        mask = structure.mask(units if structure.group else _ranks(units), density)
        return PrunedMatrix(matrix * mask, mask)


def _ranks(units: Tensor) -> Tensor:
    """Return the rank of each unit in its row; of equal ranks, the higher score counts more."""
    ranks = units.argsort(1).argsort(1).double()
    return ranks + units.double() / (2 * units.double().amax()).clamp_min(1e-300)


@dataclass(frozen=True)
class SecondOrder:
    """Units whose removal changes the outputs least go, and the remaining weights make up for it.

    Removing the weights w_B of a unit, with the best change of all others of the row, adds
    w_B ([H^-1]_BB)^-1 w_B^T to the squared error of the outputs (Hassibi and Stork, "Second order
    derivatives for network pruning", NeurIPS 1992; for blocks Kurtic et al., "The optimal BERT
    surgeon", EMNLP 2022). Units are removed in a few rounds. After each, all remaining weights are
    fitted to the outputs by least squares, where SparseGPT (Frantar and Alistarh, ICML 2023)
    changes only later columns. H^-1 stays that of all inputs, which underestimates the errors of
    weights whose neighbours are gone. Where this leads to more error than the mask of magnitudes
    with the same fit, that mask is used, so the error is never above that of `Magnitude`.
    """

    name: str = "obs"

    def prune(
        self, matrix: Tensor, hessian: InputHessian, structure: Structure, density: float
    ) -> PrunedMatrix:
        """Prune a matrix."""
        inverse = damped_inverse(hessian.moments)
        current, mask = matrix, torch.ones_like(matrix, dtype=torch.bool)
        for stricter, share in _schedule(structure, density):
            scores = _removal_errors(current, inverse, structure)
            scores[structure.per_unit(mask.to(scores)) == 0] = -1.0  # gone for good
            mask = stricter.mask(scores, share)
            current = reconstructed(matrix, current, mask, hessian)
        plain = Magnitude().prune(matrix, hessian, structure, density)
        rival = reconstructed(matrix, plain.matrix, plain.mask, hessian)
        if hessian.error(matrix - rival) < hessian.error(matrix - current):
            return PrunedMatrix(rival, plain.mask)
        return PrunedMatrix(current, mask)


def _schedule(structure: Structure, density: float) -> list[tuple[Structure, float]]:
    """Return the structure and the density of each round; the last are the given ones."""
    if structure.group:
        fewer = range(structure.group - 1, structure.kept - 1, -1)
        kept = list(fewer) or [structure.kept]
        return [(replace(structure, kept=count), density) for count in kept]
    shares = [density ** (done / _ROUNDS) for done in range(1, _ROUNDS)]
    return [(structure, share) for share in (*shares, density)]


def _removal_errors(matrix: Tensor, inverse: Tensor, structure: Structure) -> Tensor:
    """Return the error that removing each unit causes: (rows, columns) of units, float64."""
    width = structure.inputs
    columns = matrix.shape[1] // width
    parts = inverse.reshape(columns, width, columns, width).diagonal(dim1=0, dim2=2)
    hessians = torch.linalg.inv(parts.permute(2, 0, 1))  # (columns, width, width)
    weights = matrix.to(inverse).reshape(len(matrix), columns, width)
    products = torch.einsum("ocw,cwv,ocv->oc", weights, hessians, weights)
    return products.reshape(-1, structure.outputs, columns).sum(1)


CRITERIA: dict[str, Criterion] = {each.name: each for each in (Magnitude(), Wanda(), SecondOrder())}
"""Criteria by name."""
