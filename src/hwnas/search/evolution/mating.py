"""Who mates with whom."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["tournaments"]


def tournaments(fitness: Tensor, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Parents by binary tournaments.

    Args:
        fitness: Shape (N,), smaller is better; of equals the first drawn wins.
        pairs: How many couples.
        generator: Source of randomness.

    Returns:
        Indices of the first and the second parent of each couple, each of shape (pairs,).
    """
    drawn = torch.randint(
        len(fitness), (4, pairs), generator=generator, device=fitness.device, dtype=torch.int64
    )
    strength = fitness[drawn]
    first = torch.where(strength[1] < strength[0], drawn[1], drawn[0])
    second = torch.where(strength[3] < strength[2], drawn[3], drawn[2])
    return first, second
