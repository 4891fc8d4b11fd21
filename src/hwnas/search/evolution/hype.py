"""HypE: fronts, then those whose loss would cost the least hypervolume.

Bader and Zitzler, "HypE: An Algorithm for Fast Hypervolume-Based Many-Objective Optimization",
Evolutionary Computation 2011, with its Monte Carlo estimate. Individuals are dropped all at once by
their estimate, as in EvoMO, not one after the other; and large populations get fewer samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hwnas.search.evolution.by_rank import ByRank
from hwnas.search.evolution.ordering import argsort
from hwnas.search.evolution.ranks import LATER
from hwnas.search.evolution.scores import Scores

__all__ = ["HypE", "expected_losses", "share"]

_SAMPLES = 10_000
_MOST = 2**28  # samples times individuals
_BLOCK = 2**25  # of them at a time
_CACHED = 2**17  # the same on a CPU, so that they stay in its cache
_MARGIN = 0.1  # of the range, between the worst loss and the reference point


class HypE(ByRank):
    """Selection by rank and estimated hypervolume, mates by the same; see `ByRank`."""

    def survive(self, scores: Scores) -> Tensor:
        """Whole fronts, then those of the last one that share the most volume."""
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
    """What a point is worth to each of i that dominate it, when some are dropped at random.

    Returns:
        Float64 (count + 1,): at i the probability that with one of the i, and ``dropped`` of
        ``count`` individuals in all, all i are lost, divided by i; 0 at 0.
    """
    j = torch.arange(1, count, device=device, dtype=torch.float64)
    lost = ((dropped - j) / (count - j)).clamp(min=0).cumprod(0)
    i = torch.arange(2, count + 1, device=device, dtype=torch.float64)
    return torch.cat([lost.new_tensor([0.0, 1.0]), lost / i])


def expected_losses(losses: Tensor, samples: Tensor, dropped: int) -> Tensor:
    """Share of the samples that each individual is expected to lose to the population.

    Args:
        losses: Shape (N, objectives).
        samples: Points of the box between the ideal and the reference point, (S, objectives).
        dropped: How many of the N individuals will be dropped, this one among them.

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
