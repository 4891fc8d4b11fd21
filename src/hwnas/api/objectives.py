"""Objectives of a search, as a Python program gives them."""

from __future__ import annotations

from collections.abc import Sequence

from hwnas.search.objectives.objective import LimitScope, Objective, Reduction

__all__ = ["maximize", "minimize"]


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
    target: str | Sequence[str] | None = None,
    limit: float | None = None,
    reduce: Reduction = "worst",
    limit_on: LimitScope = "candidates",
) -> Objective:
    """Return an objective that is better the smaller the metric is.

    Args:
        metric: Cost such as ``"latency_ms"``, ``"macs"`` or ``"params"``, or a metric of the task.
        target: Target of a cost that depends on one, such as ``"cpu-onnxruntime-fp32-b1-t1"``, or
            several targets.
        limit: Largest acceptable value, in the metric's unit; None for no limit. For a predicted
            cost, the upper end of the 90% prediction interval has to meet it.
        reduce: Reduction over several targets: ``"worst"``, the largest, ``"sum"``, or ``"min"``,
            the least: each network ships for the target on which it costs least.
        limit_on: As for `maximize`, for a metric of the task.

    Raises:
        ConfigError: A target is missing, or is given for a metric that has none.
    """
    if target is None or isinstance(target, str):
        return Objective(metric, "minimize", target, limit, limit_on=limit_on)
    return Objective(metric, "minimize", limit=limit, targets=tuple(target), reduce=reduce)
