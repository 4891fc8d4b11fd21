"""Candidates spread evenly over cost, for searches that train each of a few from scratch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hwnas.errors import ConfigError
from hwnas.search.samplers.knowledge import Knowledge
from hwnas.search.samplers.planned import History, PlannedSampler
from hwnas.search.samplers.pool import random_start
from hwnas.search_spaces.tabular import Codes

__all__ = ["Stratified"]

_DRAWN = 2000


class Stratified(PlannedSampler):
    """Divides the range of the first cost into strata of equal ratio, and takes one of each.

    Half of them, every other one, take the network that a zero-cost proxy likes best (see
    `Knowledge.proxy`: at equal latency that is the one with the most multiply-accumulates and
    parameters), the others one at random. It learns nothing from what was evaluated, so a search is
    one batch.

    Args:
        seed: Of what is random.
        batch: How many are evaluated together.
        knowledge: Of the space; made from a study's trials if None.
        most_macs: Networks with more multiply-accumulates are left out, as being too large for the
            training that they would get; None for no limit. Where a space cannot count them it has
            no effect.
        range: Ratio of the highest cost to the lowest, above 1; networks below are left out.
    """

    def __init__(
        self,
        seed: int = 0,
        batch: int = 4,
        knowledge: Knowledge | None = None,
        most_macs: float | None = None,
        range: float = 16.0,
    ) -> None:
        super().__init__(seed, batch, knowledge)
        if most_macs is not None and not most_macs > 0:
            raise ConfigError(f"most_macs is {most_macs}; expected a number above 0")
        if not range > 1:
            raise ConfigError(f"range is {range}; expected a number above 1")
        self.most_macs, self.range = most_macs, range

    def plan(
        self, knowledge: Knowledge, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `PlannedSampler.plan`."""
        drawn = random_start(knowledge, history, _DRAWN, rng)
        drawn = np.unique(drawn, axis=0)
        if self.most_macs is not None and knowledge.macs is not None and len(drawn):
            small = knowledge.macs(drawn) <= self.most_macs
            drawn = drawn[small] if small.any() else drawn[[np.argmin(knowledge.macs(drawn))]]
        prices = knowledge.price(drawn)
        if len(drawn) <= count or not prices:
            return rng.permutation(drawn)[:count]
        costs = np.log(np.maximum(next(iter(prices.values())).values, np.finfo(float).tiny))
        kept = costs >= costs.max() - np.log(self.range)
        rows = _one_of_each(costs[kept], knowledge.proxy(drawn[kept]), count, rng)
        found: Codes = drawn[kept][rows]
        return found


def _one_of_each(
    costs: npt.NDArray[np.float64],
    proxy: npt.NDArray[np.float64],
    count: int,
    rng: np.random.Generator,
) -> list[int]:
    """Rows of networks, from the cheapest stratum to the dearest; empty ones give to the others.

    Args:
        costs: Logarithms, of shape (N,).
        proxy: More is better, (N,).
        count: Of strata.
        rng: Source of randomness.
    """
    edges = np.linspace(costs.min(), costs.max(), count + 1)[1:-1]
    strata = np.searchsorted(edges, costs, side="right")
    picked: list[int] = []
    for number in range(count):
        rows = np.flatnonzero(strata == number)
        if len(rows):
            best = number % 2 == 0
            picked.append(int(rows[np.argmax(proxy[rows])] if best else rng.choice(rows)))
    left = np.setdiff1d(np.arange(len(costs)), picked)
    missing = min(count - len(picked), len(left))
    return sorted([*picked, *rng.permutation(left)[:missing].tolist()], key=lambda row: costs[row])
