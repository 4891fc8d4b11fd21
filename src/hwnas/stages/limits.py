"""Whether a finalist keeps the limits as it is delivered: measured, and evaluated once exported.

A search goes by predicted costs and by scores with the weights of the search. What ships is
something else, so each limit is checked again on what was measured and evaluated in the end.

The rule: a limit is kept if the value itself keeps it. If it does not, but some of the interval
does, it is missed ``within noise``; else it is ``broken``. The interval of a latency is what the
middle 60 % of its timing rounds took (p20 to p80), that of a score its 95 % confidence interval.
Test images choose nothing: what they say of a limit is shown, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hwnas.deploy.bundle import Bundle
from hwnas.deploy.measurement import Measurement
from hwnas.errors import InfeasibleError
from hwnas.interval import row_interval
from hwnas.search.objective import COUNTED, LATENCY, Objective

__all__ = [
    "LimitCheck",
    "LimitState",
    "best_kept",
    "limit_checks",
    "none_keeps",
    "of_bundle",
    "overall",
    "recheck",
    "shortfall",
    "told",
]

LimitState = Literal["kept", "within noise", "broken"]
_STATES: tuple[LimitState, ...] = ("kept", "within noise", "broken")


@dataclass(frozen=True)
class LimitCheck:
    """A limit beside what a network delivers.

    Attributes:
        label: Of the objective that has the limit.
        limit: The worst acceptable value.
        value: What was delivered.
        low: Lower end of its interval.
        high: Upper end of its interval.
        kind: How the value was found.
        split: Which images it was evaluated on; None for what does not depend on images.
        state: Whether the limit is kept.
        excess: By which share of the limit it is missed; 0 where it is kept.
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
        """Whether anything is chosen by it: not by what test images say."""
        return self.split != "test"

    @property
    def text(self) -> str:
        """What is delivered and what is allowed, in words."""
        how = self.kind if self.split is None else f"{self.kind} on {self.split} images"
        noise = ", within noise" if self.state == "within noise" else ""
        return f"{self.label} is {self.value:.4g} ({how}); the limit is {self.limit:g}{noise}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the fields of this check."""
        return asdict(self)


@dataclass(frozen=True)
class _Delivered:
    """A value with its interval."""

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
    """Check the limits that a finalist's numbers can tell of.

    Args:
        objectives: Those without a limit are passed over.
        metrics: Rows as a bundle has them, with ``name``, ``value`` and ``kind``, and of what was
            evaluated also ``split``, ``standard_error``, ``n`` and ``unit``.
        measurements: Of the finalist, on whichever targets.
    """
    rows, timed = list(metrics), {each.target: each for each in measurements}
    return tuple(
        _check(objective, found)
        for objective in objectives
        if objective.limit is not None
        for found in _delivered(objective, rows, timed)
    )


def of_bundle(bundle: Bundle, objectives: Sequence[Objective]) -> tuple[LimitCheck, ...]:
    """`limit_checks` of a finalist that is packed."""
    return limit_checks(objectives, bundle.description["metrics"], bundle.measurements)


def recheck(
    checks: Iterable[LimitCheck], objectives: Sequence[Objective]
) -> tuple[LimitCheck, ...]:
    """The same checks by the limits that objectives have now."""
    limited = {o.label: o for o in objectives if o.limit is not None}
    return tuple(
        _check(limited[c.label], _Delivered(c.value, c.low, c.high, c.kind, c.split))
        for c in checks
        if c.label in limited
    )


def overall(checks: Iterable[LimitCheck]) -> LimitState:
    """The worst state among the checks that decide; ``kept`` where there is none."""
    return max((c.state for c in checks if c.decides), key=_STATES.index, default="kept")


def shortfall(checks: Iterable[LimitCheck]) -> tuple[int, float]:
    """How bad it is, to sort by: the state, then the sum of what is missed."""
    decisive = [check for check in checks if check.decides]
    return _STATES.index(overall(decisive)), sum(check.excess for check in decisive)


def told(checks: Iterable[LimitCheck]) -> list[str]:
    """A line for each limit that is not kept."""
    return [check.text for check in checks if check.state != "kept"]


def best_kept(checks: Mapping[str, Sequence[LimitCheck]]) -> list[str]:
    """Ids that may be chosen: of networks that keep the limits, or else that miss within noise."""
    states = {name: overall(found) for name, found in checks.items()}
    for wanted in _STATES[:2]:
        if able := [name for name, state in states.items() if state == wanted]:
            return able
    return []


def none_keeps(
    checks: Mapping[str, Sequence[LimitCheck]], purpose: Literal["pick", "cascade"] = "pick"
) -> InfeasibleError:
    """What to say where a network is to be chosen and all break a limit; there is at least one."""
    name = min(checks, key=lambda each: shortfall(checks[each]))
    missed = "; ".join(told(check for check in checks[name] if check.decides))
    advice = "relax the limit"
    if purpose == "pick":
        advice = f"take it all the same with --pick {name}, or {advice}"
    return InfeasibleError(
        f"none of {len(checks)} finalists keeps the limits, and the closest is {name}: {missed}; "
        f"{advice}"
    )


def _delivered(
    objective: Objective, rows: Sequence[Mapping[str, Any]], timed: Mapping[str, Measurement]
) -> list[_Delivered]:
    """What is known of an objective's value: of a score on each split, of others once at most."""
    if objective.metric == LATENCY:
        if not timed.keys() >= set(objective.priced_on):
            return []
        value, low, high = (
            objective.reduced({name: getattr(m.headline, end) for name, m in timed.items()})
            for end in ("p50", "p20", "p80")
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
