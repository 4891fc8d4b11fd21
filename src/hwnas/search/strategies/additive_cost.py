"""Expected cost of a distribution over networks, as a sum over choices.

Shapes: N networks, C choices of at most O options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.tabular import Codes

__all__ = ["AdditiveCost"]

Numbers = npt.NDArray[np.float64]

_SAMPLES = 16  # networks for each coefficient
_FEWEST, _MOST = 512, 4096


@dataclass(frozen=True)
class AdditiveCost:
    """Cost as a constant plus the cost of the option of each choice that has an effect.

    ProxylessNAS (Cai, Zhu and Han, ICLR 2019, section 3.3) sums the latencies of a path's
    operators, which gives the expected latency a gradient. Here the terms are a least-squares fit
    to the predicted costs of random networks, so they serve any cost and any choice.

    Attributes:
        base: Constant, in the unit of the cost.
        terms: Cost of each option, (C, O).
        parents: Index of the choice that each choice's effect depends on; -1 for none, (C,).
        allows: Whether a choice has an effect with each option of its parent, (C, O).
        reference: Expected cost if all options are equally probable.
    """

    base: float
    terms: Tensor
    parents: tuple[int, ...]
    allows: Tensor
    reference: float = 1.0

    @classmethod
    def fit(cls, space: SearchSpace, cost_of: Callable[[Codes], Numbers]) -> AdditiveCost:
        """Fit the terms to the costs of random networks.

        Args:
            space: Space of the networks.
            cost_of: Function from codes (N, C) to costs, (N,).
        """
        sizes = np.array([len(choice.options) for choice in space.choices])
        parents, allows = _conditions(space)
        rng = np.random.default_rng(0)
        count = int(np.clip(_SAMPLES * sizes.sum(), _FEWEST, _MOST))
        codes = space.canonical(rng.integers(sizes, size=(count, len(sizes))))
        unfitted = cls(0.0, torch.zeros(allows.shape), parents, torch.from_numpy(allows))
        picked = np.zeros((count, *allows.shape))
        np.put_along_axis(picked, codes[:, :, None], 1.0, axis=2)
        effect = unfitted.effect(torch.from_numpy(picked)).numpy()
        rows = (picked * effect[:, :, None]).reshape(count, -1)
        costs = cost_of(codes)
        # The smallest solution: the constant takes what all options of a choice have in common.
        centre = rows.mean(0)
        solved = np.linalg.lstsq(rows - centre, costs - costs.mean(), rcond=1e-8)[0]
        terms = torch.from_numpy(solved.reshape(allows.shape)).float()
        base = float(costs.mean() - centre @ solved)
        fitted = cls(base, terms, parents, unfitted.allows)
        exists = torch.arange(allows.shape[1]) < torch.from_numpy(sizes)[:, None]
        return cls(
            base, terms, parents, unfitted.allows, float(fitted(exists / exists.sum(1)[:, None]))
        )

    @classmethod
    def summed(cls, costs: Sequence[AdditiveCost]) -> AdditiveCost:
        """Return the sum of costs of one space, each relative to its reference.

        Its reference is their number, so that its relative cost is their mean.
        """
        first = costs[0]
        terms = torch.stack([each.terms / each.reference for each in costs]).sum(0)
        base = sum(each.base / each.reference for each in costs)
        return replace(first, base=base, terms=terms, reference=float(len(costs)))

    def __call__(self, probabilities: Tensor) -> Tensor:
        """Return the expected cost (...) of probabilities (..., C, O), with a gradient."""
        terms = self.terms.to(probabilities)
        each = (probabilities * terms).sum(-1) * self.effect(probabilities)
        return self.base + each.sum(-1)

    def relative(self, probabilities: Tensor) -> Tensor:
        """Return the expected cost over the reference, (...), with a gradient."""
        return self(probabilities) / self.reference

    def effect(self, probabilities: Tensor) -> Tensor:
        """Return the probability that each choice has an effect, (..., C)."""
        found: list[Tensor] = []
        one = torch.ones_like(probabilities[..., 0, 0])
        allows = self.allows.to(probabilities)
        for choice, parent in enumerate(self.parents):
            if parent < 0:
                found.append(one)
            else:
                found.append(
                    found[parent] * (probabilities[..., parent, :] * allows[choice]).sum(-1)
                )
        return torch.stack(found, -1)


def _conditions(space: SearchSpace) -> tuple[tuple[int, ...], npt.NDArray[np.bool_]]:
    """Return the parent of each choice, and the options of the parent that give it an effect."""
    places = {choice.name: i for i, choice in enumerate(space.choices)}
    most = max(len(choice.options) for choice in space.choices)
    allows = np.zeros((len(places), most), dtype=bool)
    parents = []
    for i, choice in enumerate(space.choices):
        parents.append(-1 if choice.when is None else places[choice.when.name])
        if choice.when is not None:
            options = space.choices[parents[-1]].options
            allows[i, : len(options)] = [option in choice.when.values for option in options]
    return tuple(parents), allows
