"""Selection of parents by binary tournaments."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["tournaments"]


def tournaments(fitness: Tensor, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Select parents by binary tournaments in which all individuals take part equally often.

    Args:
        fitness: Fitness of the individuals, (N,), smaller is better; a tie goes to the first drawn.
        pairs: Number of couples.
        generator: Source of randomness.

    Returns:
        Indices of the first and the second parent of each couple, each of shape (pairs,).
    """
    count, places = len(fitness), 4 * pairs
    shuffled = [
        torch.randperm(count, generator=generator, device=fitness.device)
        for _ in range(0, places, count)
    ]
    drawn = torch.cat(shuffled)[:places].view(2, 2, pairs)
    one, other = drawn.unbind(1)
    winners = torch.where(fitness[other] < fitness[one], other, one)
    return winners[0], winners[1]
