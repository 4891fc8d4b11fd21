"""Objectives of a search, and the limits on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from hwnas.config_class import config_class
from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.predictors.estimate import NORMAL_90, Estimate
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.search_spaces import Workload

__all__ = [
    "COUNTED",
    "LATENCY",
    "Direction",
    "LimitScope",
    "Objective",
    "Reduction",
    "check_objectives",
    "kind_of",
    "label_on",
    "losses",
    "stored_label",
    "unit_of",
    "violations",
    "weighed",
]

T = TypeVar("T")
Direction = Literal["maximize", "minimize"]
Reduction = Literal["worst", "sum", "min"]
LimitScope = Literal["candidates", "finalists", "validation"]
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "direction": get_args(Direction),
    "reduce": get_args(Reduction),
    "limit_on": get_args(LimitScope),
}

LATENCY = "latency_ms"

COUNTED: Mapping[str, Callable[[Workload], int]] = {
    "macs": lambda workload: workload.macs,
    "params": lambda workload: workload.params,
    "weight_bytes": lambda workload: workload.weight_bytes,
    "bit_operations": lambda workload: workload.bit_operations,
    "peak_activation_bytes": lambda workload: workload.peak_activation_bytes,
    "peak_int8_activation_bytes": lambda workload: workload.peak_int8_activation_bytes,
}
"""Functions that count a cost exactly from a workload, by the cost's name."""


@config_class
@dataclass(frozen=True)
class Objective:
    """Objective of a search: a metric, its direction, and perhaps a limit.

    Attributes:
        metric: Metric of the task (``"accuracy"``), one of `DEVICE_METRICS` (``"latency_ms"``), or
            one of `COUNTED`.
        direction: Direction that is better.
        target: Target of one of `DEVICE_METRICS`, e.g. ``"cpu-onnxruntime-fp32-b1-t1"``.
        limit: Worst acceptable value, in the metric's unit; None for no limit. For a predicted
            cost, the upper end of the 90% prediction interval has to meet it.
        targets: Several targets that make one objective, in place of ``target``.
        reduce: Reduction over ``targets``: ``"worst"``, the largest cost, ``"sum"``, the total, or
            ``"min"``, the least cost among the targets in the number format of the network, which
            then ships for that target. For the first two, the upper ends of the prediction
            intervals are reduced in the same way.
        limit_on: ``"candidates"`` if the limit holds for all networks of the search; or
            ``"finalists"`` if it holds only for those that are fine-tuned and delivered, for scores
            that are lower before the fine-tuning; or ``"validation"`` if, of these, only the scores
            on validation images count, for a limit that is taken from another network's score.
    """

    metric: str
    direction: Direction
    target: str | None = None
    limit: float | None = None
    targets: tuple[str, ...] = ()
    reduce: Reduction | None = None
    limit_on: LimitScope = "candidates"

    def __post_init__(self) -> None:
        for name, known in _KNOWN.items():
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ConfigError(
                    f"objective {self.metric!r} has {name} {value!r}; {closest(str(value), known)}"
                )
        self._check_targets()
        if self.limit_on != "candidates" and (self.limit is None or self.is_cost):
            raise ConfigError(
                f'objective {self.metric!r} has limit_on = "{self.limit_on}", which is for a limit '
                "on a metric of the task; leave it out"
            )
        if self.limit is not None and not math.isfinite(self.limit):
            raise ConfigError(
                f"the limit of {self.label} is {self.limit}; expected a finite number"
            )
        if self.limit is not None and self.is_cost and self.limit <= 0:
            raise ConfigError(
                f"the limit of {self.label} is {self.limit:g}; expected a number above 0"
            )

    @property
    def label(self) -> str:
        """Label of the objective.

        It is ``metric``, ``metric@target`` or ``metric@worst(target+target)``.
        """
        if self.targets:
            return label_on(self.metric, f"{self.reduce}({'+'.join(self.targets)})")
        return self.metric if self.target is None else label_on(self.metric, self.target)

    @property
    def limits_candidates(self) -> bool:
        """True if there is a limit that holds for all networks of the search."""
        return self.limit is not None and self.limit_on == "candidates"

    @property
    def is_cost(self) -> bool:
        """True for a cost, which is positive; False for a metric of the task."""
        return self.metric in DEVICE_METRICS or self.metric in COUNTED

    @property
    def all_targets(self) -> tuple[str, ...]:
        """All targets that the value depends on; empty if the metric has no target."""
        return self.targets or (() if self.target is None else (self.target,))

    @property
    def costs(self) -> tuple[str, ...]:
        """Labels of the metric on each target that the value depends on."""
        return tuple(label_on(self.metric, target) for target in self.all_targets)

    def on_targets(self, by_label: Mapping[str, T]) -> dict[str, T]:
        """Return values by target name, given by label of the metric on a target (`label_on`).

        They are empty if a value is missing that the objective depends on. For the least cost one
        value is enough, since a network runs on the targets in its number format only.
        """
        pairs = zip(self.all_targets, self.costs, strict=True)
        found = {target: by_label[label] for target, label in pairs if label in by_label}
        return found if self.reduce == "min" or len(found) == len(self.all_targets) else {}

    def reduced(self, costs: Mapping[str, float]) -> float:
        """Return the worst, the sum or the least of costs, given by target name (`on_targets`)."""
        if self.reduce == "min":
            return min(costs.values())
        values = [costs[target] for target in self.all_targets]
        return math.fsum(values) if self.reduce == "sum" else max(values)

    def estimate(self, estimates: Mapping[str, Estimate]) -> Estimate:
        """Return one estimate from those on the targets, given by target name (`on_targets`).

        The least cost is the estimate with the least mean, which names its target. For the others,
        means and upper ends of the prediction intervals are reduced separately. For a sum this
        assumes that all costs are underestimated at once: the predictors of the devices are trained
        on the same data, so their errors are not independent.
        """
        if not self.targets or self.reduce == "min":
            return min(estimates.values(), key=lambda each: each.mean)
        mean = self.reduced({t: e.mean for t, e in estimates.items()})
        upper = self.reduced({t: e.interval90[1] for t, e in estimates.items()})
        std = mean * math.sinh(math.log(upper / mean) / NORMAL_90)
        kinds = {estimates[target].kind for target in self.targets}
        kind = kinds.pop() if len(kinds) == 1 else "modelled"
        return Estimate(self.metric, mean, std, kind, self.label.removeprefix(f"{self.metric}@"))

    def loss(self, value: float) -> float:
        """Return the value with a sign such that smaller is better."""
        return value if self.direction == "minimize" else -value

    def violation(self, value: float) -> float:
        """Return by how much the limit is violated, in the metric's unit; at most 0 if it is met.

        Without a limit it is -1.
        """
        return -1.0 if self.limit is None else self.loss(value) - self.loss(self.limit)

    def _check_targets(self) -> None:
        if self.target is not None and self.targets:
            raise ConfigError(
                f"objective {self.metric!r} has both target and targets; keep one of them"
            )
        if bool(self.targets) != (self.reduce is not None):
            given, missing = ("targets", "reduce") if self.targets else ("reduce", "targets")
            raise ConfigError(
                f"objective {self.metric!r} has {given}, but no {missing}; give both, or an "
                "[[objective]] with its own target for each"
            )
        if self.targets and len(set(self.targets)) < max(2, len(self.targets)):
            raise ConfigError(
                f"objective {self.metric!r} has targets {', '.join(self.targets)}; expected two or "
                "more, none twice"
            )


def label_on(metric: str, target: str) -> str:
    """Return the label of a metric on a target."""
    return f"{metric}@{target}"


def stored_label(label: str) -> str:
    """Return a label as names of stages and identities of results contain it.

    The metric is left out if it is latency, which was once the only metric with a target.
    """
    return label.removeprefix(f"{LATENCY}@")


def kind_of(metric: str) -> Literal["predicted", "counted", "evaluated"]:
    """Return how the search obtains the values of a metric."""
    if metric in DEVICE_METRICS:
        return "predicted"
    return "counted" if metric in COUNTED else "evaluated"


def unit_of(metric: str) -> str:
    """Return the unit of a cost; empty if it has none."""
    if metric in DEVICE_METRICS:
        return DEVICE_METRICS[metric].unit
    return "bytes" if metric.endswith("_bytes") else ""


def check_objectives(
    objectives: Sequence[Objective], task_metrics: Mapping[str, Direction]
) -> None:
    """Check that objectives are valid.

    Args:
        objectives: Objectives in the order of the recipe.
        task_metrics: Direction of each metric of the task.

    Raises:
        ConfigError: There is no objective, or an objective has an unknown metric, the wrong
            direction, a missing or superfluous target, or occurs twice.
    """
    if not objectives:
        raise ConfigError("the recipe has no [[objective]]; give at least one")
    directions: dict[str, Direction] = {**task_metrics}
    directions |= dict.fromkeys([*DEVICE_METRICS, *COUNTED], "minimize")
    for objective in objectives:
        metric = objective.metric
        if metric not in directions:
            raise ConfigError(
                f"objective.metric {metric!r} is unknown; {closest(metric, directions)}"
            )
        if objective.direction != directions[metric]:
            raise ConfigError(
                f"objective {metric!r} has direction {objective.direction!r}, but "
                f"{'more' if directions[metric] == 'maximize' else 'less'} of it is better; "
                f'write direction = "{directions[metric]}"'
            )
        if (metric in DEVICE_METRICS) != bool(objective.all_targets):
            wanted = "needs a target" if metric in DEVICE_METRICS else "takes no target"
            raise ConfigError(f"objective {metric!r} {wanted}; see `hwnas devices`")
    labels = [objective.label for objective in objectives]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"objective {label!r} appears twice; remove one")


def losses(
    objectives: Sequence[Objective], rows: Sequence[Mapping[str, float]]
) -> npt.NDArray[np.float64]:
    """Return the losses of rows of values by label, of shape (len(rows), len(objectives))."""
    table = [[o.loss(row[o.label]) for o in objectives] for row in rows]
    return np.array(table, dtype=np.float64).reshape(len(rows), len(objectives))


def weighed(
    objectives: Sequence[Objective], rows: Sequence[Mapping[str, float]]
) -> npt.NDArray[np.float64]:
    """Return `losses` with the logarithms of costs in place of costs, so that distances compare.

    On a logarithmic scale, halving the latency is the same distance at either end of a front.
    """
    table = losses(objectives, rows)
    costs = [o.is_cost for o in objectives]
    table[:, costs] = np.log(np.maximum(table[:, costs], np.finfo(np.float64).tiny))
    return table


def violations(objectives: Sequence[Objective], values: Mapping[str, float]) -> dict[str, float]:
    """Return the violation of each limit on candidates by label; at most 0 if it is met."""
    return {o.label: o.violation(values[o.label]) for o in objectives if o.limits_candidates}
