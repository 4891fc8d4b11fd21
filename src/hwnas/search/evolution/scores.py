"""Validated losses and constraint violations of a population."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hwnas.errors import ConfigError, DataError

__all__ = ["Score", "Scores", "checked_scores"]

Score = Callable[[Tensor], Any]
"""Function from a population to losses, or to a pair of losses and constraint violations."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Losses and violations of N individuals.

    Attributes:
        losses: Losses, float64 (N, objectives), smaller is better.
        violations: Total constraint violations, float64 (N,), at least 0; 0 is feasible.
    """

    losses: Tensor
    violations: Tensor

    def __len__(self) -> int:
        return len(self.losses)

    def take(self, index: Tensor) -> Scores:
        """Return the scores of some individuals."""
        return Scores(self.losses[index], self.violations[index])

    def followed_by(self, other: Scores) -> Scores:
        """Concatenate the scores of two populations."""
        return Scores(
            torch.cat([self.losses, other.losses]), torch.cat([self.violations, other.violations])
        )

    def spread(self, alive: Tensor) -> Scores:
        """Return M scores: these where ``alive``, bool (M,), is true, else infinite violations."""
        losses = self.losses.new_zeros((len(alive), self.losses.shape[1]))
        losses[alive] = self.losses
        violations = self.violations.new_full((len(alive),), torch.inf)
        violations[alive] = self.violations
        return Scores(losses, violations)


def checked_scores(given: Any, count: int, device: torch.device) -> Scores:
    """Check and convert the result of a score function.

    Args:
        given: Losses, (count, objectives), or a pair of losses and violations, (count,) or
            (count, constraints), of which only positive values count; NumPy or torch.
        count: Number of individuals that were scored.
        device: Device of the returned scores.

    Raises:
        ConfigError: The shapes do not fit, or there are fewer than two objectives.
        DataError: A loss is not finite, or a violation is not a number.
    """
    given, violated = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    losses = _on(given, device)
    if losses.ndim != 2 or len(losses) != count:
        raise ConfigError(
            f"the score function gave losses of shape {tuple(losses.shape)}; expected ({count}, "
            "objectives)"
        )
    if losses.shape[1] < 2:
        raise ConfigError(
            f"the score function gave {losses.shape[1]} objectives; expected 2 or more"
        )
    if not bool(torch.isfinite(losses).all()):
        wrong = int((~torch.isfinite(losses)).any(1).sum())
        raise DataError(
            f"the score function gave losses that are not finite for {wrong} of {count} points; "
            "give a point that is not allowed a constraint violation"
        )
    return Scores(losses, _violations(violated, count, losses))


def _violations(given: Any, count: int, losses: Tensor) -> Tensor:
    if given is None:
        return losses.new_zeros(count)
    violated = _on(given, losses.device)
    if violated.ndim not in (1, 2) or len(violated) != count:
        raise ConfigError(
            f"the score function gave violations of shape {tuple(violated.shape)}; expected "
            f"({count},) or ({count}, constraints)"
        )
    if bool(torch.isnan(violated).any()):
        raise DataError("the score function gave a constraint violation that is not a number")
    return violated.clamp(min=0).reshape(count, -1).sum(1)


def _on(array: Any, device: torch.device) -> Tensor:
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.asarray(array, np.float64))
    return tensor.detach().to(device, torch.float64)
