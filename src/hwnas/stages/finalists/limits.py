"""Checks of finalists against the limits, with costs as measured and scores as exported.

A search uses predicted costs, and scores with the weights of the search. The delivered network
differs, so each limit is checked again on its final measurements and evaluations.

A limit is ``kept`` if the value itself meets it. If the value violates it but part of the interval
meets it, it is violated ``within noise``; otherwise it is ``broken``. The interval of a latency is
the range of the middle 60 % of its timing rounds (p20 to p80), that of another measured cost the
range of its repetitions, that of a score its 95 % confidence interval. Test images are not used to
choose: their values are shown, but decide nothing. A limit that comes from another network's score
on validation images is not checked on test images, on which that network has another score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.measurement.measured_cost import MeasuredCost
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.errors import InfeasibleError
from hwnas.interval import row_interval
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS, latency_cost
from hwnas.search.objectives.objective import COUNTED, Objective, label_on

__all__ = [
    "LimitCheck",
    "LimitState",
    "best_kept",
    "costs_of",
    "limit_checks",
    "limit_messages",
    "measured_costs",
    "none_keeps",
    "of_bundle",
    "overall",
    "recheck",
    "shortfall",
]

LimitState = Literal["kept", "within noise", "broken"]
_STATES: tuple[LimitState, ...] = ("kept", "within noise", "broken")


@dataclass(frozen=True)
class LimitCheck:
    """Comparison of a limit with the delivered value of a network.

    Attributes:
        label: Label of the objective that has the limit.
        limit: Worst acceptable value.
        value: Delivered value.
        low: Lower end of the value's interval.
        high: Upper end of the value's interval.
        kind: Origin of the value: measured, evaluated or counted.
        split: Split of the images it was evaluated on; None if it does not depend on images.
        state: State of the limit: kept, missed within noise, or broken.
        excess: Share of the limit by which it is missed; 0 where it is kept.
    """

    label: str
    limit: float
    value: float
    low: float
    high: float
    kind: Literal["measured", "evaluated", "counted"]
    split: str | None
    state: LimitState
    excess: float

    @property
    def decides(self) -> bool:
        """True if the check may decide a choice; checks on test images do not."""
        return self.split != "test"

    @property
    def text(self) -> str:
        """Delivered value and limit, in words."""
        how = self.kind if self.split is None else f"{self.kind} on {self.split} images"
        noise = ", within noise" if self.state == "within noise" else ""
        return f"{self.label} is {self.value:.4g} ({how}); the limit is {self.limit:g}{noise}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the fields of this check."""
        return asdict(self)


@dataclass(frozen=True)
class _Delivered:
    """Delivered value with its interval."""

    value: float
    low: float
    high: float
    kind: Literal["measured", "evaluated", "counted"]
    split: str | None = None


def limit_checks(
    objectives: Sequence[Objective],
    metrics: Iterable[Mapping[str, Any]],
    measurements: Iterable[Measurement],
) -> tuple[LimitCheck, ...]:
    """Check the limits of all objectives that a finalist has values for.

    Args:
        objectives: Objectives; those without a limit are skipped.
        metrics: Metric rows of a bundle, with ``name``, ``value`` and ``kind``, and for evaluated
            metrics also ``split``, ``standard_error``, ``n`` and ``unit``.
        measurements: Measurements of the finalist, on any targets.
    """
    rows = list(metrics)
    costs = measured_costs(rows, measurements)
    return tuple(
        _check(objective, found)
        for objective in objectives
        if objective.limit is not None
        for found in _delivered(objective, rows, costs)
    )


def measured_costs(
    metrics: Iterable[Mapping[str, Any]], measurements: Iterable[Measurement]
) -> dict[str, MeasuredCost]:
    """Return the measured costs of a network by label; arguments as in `limit_checks`."""
    costs = [latency_cost(each) for each in measurements]
    costs += [
        MeasuredCost.from_json(row)
        for row in metrics
        if row["kind"] == "measured" and row["name"] in DEVICE_METRICS
    ]
    return {label_on(each.metric, each.target): each for each in costs}


def costs_of(bundle: Bundle) -> dict[str, MeasuredCost]:
    """Return the measured costs of a packaged network by label."""
    return measured_costs(bundle.description["metrics"], bundle.measurements)


def of_bundle(bundle: Bundle, objectives: Sequence[Objective]) -> tuple[LimitCheck, ...]:
    """Return `limit_checks` of a packaged finalist."""
    return limit_checks(objectives, bundle.description["metrics"], bundle.measurements)


def recheck(
    checks: Iterable[LimitCheck], objectives: Sequence[Objective]
) -> tuple[LimitCheck, ...]:
    """Return the same checks against the current limits of the objectives."""
    limited = {o.label: o for o in objectives if o.limit is not None}
    return tuple(
        _check(limited[c.label], _Delivered(c.value, c.low, c.high, c.kind, c.split))
        for c in checks
        if c.label in limited
    )


def overall(checks: Iterable[LimitCheck]) -> LimitState:
    """Return the worst state among the checks that decide; ``kept`` if there is none."""
    return max((c.state for c in checks if c.decides), key=_STATES.index, default="kept")


def shortfall(checks: Iterable[LimitCheck]) -> tuple[int, float]:
    """Return a sort key for violated limits: the worst state, then the sum of the excesses."""
    decisive = [check for check in checks if check.decides]
    return _STATES.index(overall(decisive)), sum(check.excess for check in decisive)


def limit_messages(checks: Iterable[LimitCheck]) -> list[str]:
    """Return a line for each limit that is not kept."""
    return [check.text for check in checks if check.state != "kept"]


def best_kept(checks: Mapping[str, Sequence[LimitCheck]]) -> list[str]:
    """Return the ids of networks that meet the limits, or else meet them within noise."""
    states = {name: overall(found) for name, found in checks.items()}
    for wanted in _STATES[:2]:
        if able := [name for name, state in states.items() if state == wanted]:
            return able
    return []


def none_keeps(
    checks: Mapping[str, Sequence[LimitCheck]], purpose: Literal["pick", "cascade"] = "pick"
) -> InfeasibleError:
    """Return the error for a choice among networks, at least one, that all break a limit."""
    name = min(checks, key=lambda each: shortfall(checks[each]))
    missed = "; ".join(limit_messages(check for check in checks[name] if check.decides))
    advice = "relax the limit"
    if purpose == "pick":
        advice = f"take it anyway with --pick {name}, or {advice}"
    return InfeasibleError(
        f"none of {len(checks)} finalists meets the limits, and the closest is {name}: {missed}; "
        f"{advice}"
    )


def _delivered(
    objective: Objective, rows: Sequence[Mapping[str, Any]], costs: Mapping[str, MeasuredCost]
) -> list[_Delivered]:
    """Return the known values of an objective: a score on each split, or at most one cost."""
    if objective.all_targets:
        on = objective.on_targets(costs)
        if not on:
            return []
        value, low, high = (
            objective.reduced({target: getattr(cost, end) for target, cost in on.items()})
            for end in ("value", "low", "high")
        )
        return [_Delivered(value, low, high, "measured")]
    own = [row for row in rows if row["name"] == objective.metric]
    if objective.metric in COUNTED:
        counted = [float(row["value"]) for row in own if row["kind"] == "counted"]
        return [_Delivered(value, value, value, "counted") for value in counted[:1]]
    found = []
    for row in sorted(own, key=lambda row: row.get("split") == "test"):
        interval = row_interval(row)
        low, high = [row["value"]] * 2 if interval is None else interval.ends
        if row.get("split") != "test" or objective.limit_on != "validation":
            found.append(_Delivered(row["value"], low, high, "evaluated", row.get("split")))
    return found


def _check(objective: Objective, found: _Delivered) -> LimitCheck:
    assert objective.limit is not None
    missed = objective.violation(found.value)
    state: LimitState = "kept"
    if not missed <= 0:
        at_best = min(objective.violation(end) for end in (found.low, found.high))
        state = "within noise" if at_best <= 0 else "broken"
    return LimitCheck(
        label=objective.label,
        limit=objective.limit,
        value=found.value,
        low=found.low,
        high=found.high,
        kind=found.kind,
        split=found.split,
        state=state,
        excess=max(0.0, missed) / (abs(objective.limit) or 1.0),
    )
