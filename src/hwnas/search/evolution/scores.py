"""What a score function says of a population, checked."""

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
"""From a population to its losses, or to a pair of losses and constraint violations."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Losses and violations of N individuals.

    Attributes:
        losses: Float64 of shape (N, objectives), smaller is better.
        violations: Float64 of shape (N,), at least 0; 0 where all constraints are kept.
    """

    losses: Tensor
    violations: Tensor

    def __len__(self) -> int:
        return len(self.losses)

    def take(self, index: Tensor) -> Scores:
        """Those of some individuals."""
        return Scores(self.losses[index], self.violations[index])

    def followed_by(self, other: Scores) -> Scores:
        """Those of two populations."""
        return Scores(
            torch.cat([self.losses, other.losses]), torch.cat([self.violations, other.violations])
        )

    def spread(self, alive: Tensor) -> Scores:
        """These at the places where ``alive``, shape (M,) bool, is true; worst of all elsewhere."""
        losses = self.losses.new_zeros((len(alive), self.losses.shape[1]))
        losses[alive] = self.losses
        violations = self.violations.new_full((len(alive),), torch.inf)
        violations[alive] = self.violations
        return Scores(losses, violations)


def checked_scores(given: Any, count: int, device: torch.device) -> Scores:
    """What a score function gave, if it makes sense.

    Args:
        given: Losses (count, objectives), or a pair of them and violations of shape (count,) or
            (count, constraints), of which only positive values count; NumPy or torch.
        count: How many individuals were scored.
        device: Where the scores go.

    Raises:
        ConfigError: The shapes do not fit, or there are fewer than two objectives.
        DataError: A loss is not finite or a violation not a number.
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
            f"the score function gave {losses.shape[1]} objectives; evolution is for 2 or more"
        )
    if not bool(torch.isfinite(losses).all()):
        wrong = int((~torch.isfinite(losses)).any(1).sum())
        raise DataError(
            f"the score function gave losses that are not finite for {wrong} of {count}; give what "
            "is not allowed a constraint violation"
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
