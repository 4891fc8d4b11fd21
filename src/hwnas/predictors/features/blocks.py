"""Features of networks that are known before anything is measured, in blocks.

Shapes: N networks, F features of a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hwnas.predictors.features.physical import physical_features
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces import OperatorCountTable
from hwnas.search_spaces.tabular import Codes, TabularSpace

__all__ = [
    "BlockScaling",
    "Blocks",
    "blocks_of_codes",
    "blocks_of_steps",
    "counts",
    "places",
    "rows_of",
]

Blocks = Mapping[str, Numbers]
"""Features of shape (N, F), by name: ``"physical"``; of tabular spaces also ``"counts"`` (how
often each option is taken in each group of positions) and ``"places"`` (the option that is taken
at each position)."""


def blocks_of_steps(steps: OperatorCountTable) -> Blocks:
    """Return the features of any networks."""
    return {"physical": physical_features(steps)}


def blocks_of_codes(space: TabularSpace, codes: Codes) -> Blocks:
    """Return the features of networks of a tabular space."""
    steps = space.steps(codes)
    physical = {} if steps is None else blocks_of_steps(steps)
    return {
        **physical,
        "counts": counts(codes, space.options, space.groups),
        "places": places(codes, space.options),
    }


def rows_of(blocks: Blocks, index: npt.NDArray[np.integer]) -> Blocks:
    """Return the features of some of the networks."""
    return {name: block[index] for name, block in blocks.items()}


def places(codes: Codes, options: Sequence[int]) -> Numbers:
    """Return the one-hot encoding of networks: a column for each option of each position."""
    columns = [codes[:, i, None] == np.arange(count) for i, count in enumerate(options)]
    return np.hstack(columns).astype(np.float64)


def counts(codes: Codes, options: Sequence[int], groups: Sequence[int]) -> Numbers:
    """Return how often each option is taken in each group of positions, one column for each."""
    columns = []
    for group in sorted(set(groups)):
        positions = [i for i, each in enumerate(groups) if each == group]
        every = np.arange(max(options[i] for i in positions))
        columns.append((codes[:, positions, None] == every).sum(1))
    return np.hstack(columns).astype(np.float64)


@dataclass(frozen=True)
class BlockScaling:
    """Scaling of a block to columns of mean 0 and rows of mean squared norm 1 over some networks.

    Attributes:
        centre: Mean of each column, (F,).
        spread: Divisor of each column, (F,); infinite for constant columns.
    """

    centre: Numbers
    spread: Numbers

    @classmethod
    def over(cls, block: Numbers, whiten: bool = True) -> BlockScaling:
        """Return the scaling over the networks of ``block``.

        Args:
            block: Features of shape (N, F).
            whiten: Whether all columns get the same variance; if False, they keep their ratios.
        """
        centre, spread = block.mean(0), block.std(0)
        constant = spread < 1e-9
        if not whiten:
            spread = np.full(len(spread), np.sqrt((spread**2).sum()))
        else:
            spread = spread * np.sqrt(max((~constant).sum(), 1))
        return cls(centre, np.where(constant, np.inf, spread))

    def __call__(self, block: Numbers) -> Numbers:
        """Return a block of any networks, scaled."""
        scaled: Numbers = (block - self.centre) / self.spread
        return scaled
