"""HypE: selection by fronts, then by the estimated hypervolume contribution.

Bader and Zitzler, "HypE: An Algorithm for Fast Hypervolume-Based Many-Objective Optimization",
Evolutionary Computation 2011, with its Monte Carlo estimate. Individuals are dropped all at once by
their estimate, as in EvoMO, not one after the other. Large populations get fewer samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hwnas.search.evolution.algorithms.by_rank import ByRank
from hwnas.search.evolution.ordering import argsort
from hwnas.search.evolution.ranks import LATER
from hwnas.search.evolution.scores import Scores

__all__ = ["HypE", "expected_losses", "share"]

_SAMPLES = 10_000
_MOST = 2**28  # most samples times individuals
_BLOCK = 2**25  # samples times individuals in memory at a time
_CACHED = 2**17  # the same on a CPU, so that a block fits its cache
_MARGIN = 0.1  # distance from the worst loss to the reference point, over the range


class HypE(ByRank):
    """Mating and survival by rank and estimated hypervolume contribution; see `ByRank`."""

    def survive(self, scores: Scores) -> Tensor:
        """Select whole fronts, then the largest hypervolume contributions of the last one."""
        ranks = self._fronts(scores)
        reached = torch.nonzero(ranks < LATER)[:, 0]
        ranks = ranks[reached]
        last = torch.nonzero(ranks == ranks.max())[:, 0]
        spare = len(reached) - self._population
        if spare > 0:
            volume = self._volumes(scores.losses[reached[last]], spare)
            dropped = last[argsort(-volume)][len(last) - spare :]
            lives = torch.ones_like(reached, dtype=torch.bool)
            lives[dropped] = False
            reached, ranks = reached[lives], ranks[lives]
        volume = self._volumes(scores.losses[reached], self._population)
        self._fitness = ranks + 1 - volume / volume.max().clamp(min=1e-300)
        return reached

    def _volumes(self, losses: Tensor, dropped: int) -> Tensor:
        low, high = losses.amin(0), losses.amax(0)
        high = high + _MARGIN * torch.where(high > low, high - low, 1.0)
        count = max(100, min(_SAMPLES, _MOST // len(losses)))
        drawn = torch.rand(
            (count, losses.shape[1]), generator=self._generator, device=losses.device
        )
        return expected_losses(losses, low + (high - low) * drawn, dropped)


def share(count: int, dropped: int, device: torch.device) -> Tensor:
    """Return the weight that a sample adds to each of the i individuals that dominate it, by i.

    Returns:
        Float64 (count + 1,). Entry i is the probability that all i individuals are dropped, divided
        by i, given that one of them is dropped and that ``dropped`` of the ``count`` individuals
        are dropped at random. Entry 0 is 0.
    """
    j = torch.arange(1, count, device=device, dtype=torch.float64)
    lost = ((dropped - j) / (count - j)).clamp(min=0).cumprod(0)
    i = torch.arange(2, count + 1, device=device, dtype=torch.float64)
    return torch.cat([lost.new_tensor([0.0, 1.0]), lost / i])


def expected_losses(losses: Tensor, samples: Tensor, dropped: int) -> Tensor:
    """Return the expected hypervolume loss of each individual, as a share of the samples.

    Args:
        losses: Losses of the individuals, (N, objectives).
        samples: Points of the box between the ideal and the reference point, (S, objectives).
        dropped: Number of the N individuals that will be dropped, including the individual itself.

    Returns:
        Float64 (N,), larger is better.
    """
    worth = share(len(losses), dropped, losses.device)
    columns = [column.contiguous() for column in losses.T]
    total = losses.new_zeros(len(losses))
    rows = max(1, (_CACHED if losses.device.type == "cpu" else _BLOCK) // len(losses))
    for part in torch.split(samples, rows):
        inside = columns[0] <= part[:, 0, None]
        for objective, column in enumerate(columns[1:], start=1):
            inside &= column <= part[:, objective, None]
        counted = inside.to(total.dtype)
        total += worth[counted.sum(1).long()] @ counted
    return total / len(samples)
