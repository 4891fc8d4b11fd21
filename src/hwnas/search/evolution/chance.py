"""Rare events in large tensors, without a random number for each element."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["happening", "rows_without"]


def happening(trials: int, rate: float, generator: torch.Generator) -> Tensor:
    """At which of many independent trials something happens.

    The gaps between events have a geometric distribution, so only as many are drawn as there are
    events.

    Args:
        trials: How many.
        rate: Probability at each, in (0, 1].
        generator: Source of randomness.

    Returns:
        Increasing numbers of trials, int64.
    """
    device = generator.device
    if rate >= 1:
        return torch.arange(trials, device=device)
    expected = trials * rate
    draws = int(expected + 6 * math.sqrt(expected)) + 10  # nearly always enough
    events = torch.empty(0, dtype=torch.int64, device=device)
    last = -1
    while last < trials:
        gaps = torch.rand(draws, generator=generator, device=device, dtype=torch.float64)
        gaps = gaps.neg_().log1p_().div_(math.log1p(-rate)).long().add_(1)
        events = torch.cat([events, gaps.cumsum_(0).add_(last)])
        last = int(events[-1])
    return events[: int(torch.searchsorted(events, trials))]


def rows_without(events: Tensor, rows: int, columns: int) -> Tensor:
    """Rows of a matrix in which nothing happens, increasing.

    Args:
        events: Places in the flattened matrix.
        rows: Of the matrix.
        columns: Of the matrix.
    """
    spared = torch.ones(rows, dtype=torch.bool, device=events.device)
    spared[events // columns] = False
    return torch.nonzero(spared)[:, 0]
