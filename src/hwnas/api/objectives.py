"""Objectives of a search, as a Python program gives them."""

from __future__ import annotations

from collections.abc import Sequence

from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.search.objectives.objective import LimitScope, Objective, Reduction

__all__ = ["maximize", "minimize", "target_names"]


def maximize(
    metric: str, *, limit: float | None = None, limit_on: LimitScope = "candidates"
) -> Objective:
    """Return an objective that is better the larger the metric is.

    Args:
        metric: Metric of the task, such as ``"accuracy"``.
        limit: Smallest acceptable value, in the metric's unit; None for no limit.
        limit_on: ``"candidates"`` if the limit holds for all networks of the search,
            ``"finalists"`` if it holds only for those that are delivered, ``"validation"`` if only
            for their scores on validation images.

    Raises:
        ConfigError: The limit is not a number.
    """
    return Objective(metric, "maximize", limit=limit, limit_on=limit_on)


def minimize(
    metric: str,
    *,
    target: str | Target | Sequence[str | Target] | None = None,
    limit: float | None = None,
    reduce: Reduction | None = None,
    limit_on: LimitScope = "candidates",
) -> Objective:
    """Return an objective that is better the smaller the metric is.

    Args:
        metric: Cost such as ``"latency_ms"``, ``"macs"`` or ``"params"``, or a metric of the task.
        target: Target of a cost that depends on one, or its name, such as
            ``"cpu-onnxruntime-fp32-b1-t1"``; or several targets.
        limit: Largest acceptable value, in the metric's unit; None for no limit. For a predicted
            cost, the upper end of the 90% prediction interval has to meet it.
        reduce: Reduction over several targets: ``"worst"``, the largest, which is the default;
            ``"sum"``; or ``"min"``, the least: each network ships for the target on which it costs
            least.
        limit_on: As for `maximize`, for a metric of the task.

    Raises:
        ConfigError: A target is missing, or is given for a metric that has none, or ``reduce`` is
            given without several targets.
    """
    names = () if target is None else target_names(target)
    if len(names) > 1:
        return Objective(
            metric, "minimize", None, limit, names, reduce or "worst", limit_on=limit_on
        )
    if reduce is not None:
        raise ConfigError(f"reduce is {reduce!r}, which needs several targets; leave it out")
    return Objective(metric, "minimize", names[0] if names else None, limit, limit_on=limit_on)


def target_names(given: str | Target | Sequence[str | Target]) -> tuple[str, ...]:
    """Return the names of one or several targets, which a program gives by name or as objects."""
    several = [given] if isinstance(given, str | Target) else given
    return tuple(each.name if isinstance(each, Target) else each for each in several)
