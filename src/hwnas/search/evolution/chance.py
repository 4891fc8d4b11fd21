"""Sampling of rare events in large tensors, without a random number for each element."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["happening", "rows_without"]


def happening(trials: int, rate: float, generator: torch.Generator) -> Tensor:
    """Draw the indices of the successes among many independent Bernoulli trials.

    The gaps between successes have a geometric distribution, so about one random number is drawn
    for each success.

    Args:
        trials: Number of trials.
        rate: Probability of success of each trial, in (0, 1].
        generator: Source of randomness.

    Returns:
        Increasing indices of trials, int64.
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
    """Return the indices of the rows of a matrix without an event, increasing.

    Args:
        events: Indices of the events in the flattened matrix.
        rows: Number of rows of the matrix.
        columns: Number of columns of the matrix.
    """
    spared = torch.ones(rows, dtype=torch.bool, device=events.device)
    spared[events // columns] = False
    return torch.nonzero(spared)[:, 0]
