"""What a search is to make large or small, and the limits it must keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.predictors.estimate import NORMAL_90, Estimate
from hwnas.search_spaces import Workload

__all__ = [
    "COUNTED",
    "LATENCY",
    "Direction",
    "Objective",
    "Reduction",
    "check_objectives",
    "label_on",
    "losses",
    "violations",
    "weighed",
]

Direction = Literal["maximize", "minimize"]
Reduction = Literal["worst", "sum"]

LATENCY = "latency_ms"

COUNTED: Mapping[str, Callable[[Workload], int]] = {
    "macs": lambda workload: workload.macs,
    "params": lambda workload: workload.params,
    "weight_bytes": lambda workload: workload.weight_bytes,
    "peak_activation_bytes": lambda workload: workload.peak_activation_bytes,
}
"""Costs that are counted from a workload, exactly."""


@dataclass(frozen=True)
class Objective:
    """One quantity that counts.

    Attributes:
        metric: A metric of the task (``"accuracy"``), ``"latency_ms"``, or one of `COUNTED`.
        direction: Which way is better.
        target: For ``"latency_ms"``, what to be fast on, e.g. ``"cpu-onnxruntime-fp32-b1-t1"``.
        limit: The worst acceptable value, in the metric's unit; None for no limit. Of what is
            predicted, the upper end of the 90% interval has to keep it.
        targets: In place of ``target``, several that make one objective.
        reduce: How: ``"worst"``, what the slowest target takes, or ``"sum"``, what all take
            together. The same is done with the upper ends of their intervals.
    """

    metric: str
    direction: Direction
    target: str | None = None
    limit: float | None = None
    targets: tuple[str, ...] = ()
    reduce: Reduction | None = None

    def __post_init__(self) -> None:
        self._check_targets()
        if self.limit is not None and not math.isfinite(self.limit):
            raise ConfigError(
                f"the limit of {self.label} is {self.limit}; expected a finite number"
            )

    @property
    def label(self) -> str:
        """``metric``, ``metric@target`` or ``metric@worst(target+target)``."""
        if self.targets:
            return label_on(self.metric, f"{self.reduce}({'+'.join(self.targets)})")
        return self.metric if self.target is None else label_on(self.metric, self.target)

    @property
    def is_cost(self) -> bool:
        """Whether it is what a network takes, which is above 0, not how well it does."""
        return self.metric == LATENCY or self.metric in COUNTED

    @property
    def priced_on(self) -> tuple[str, ...]:
        """All targets that its value depends on; none for what depends on none."""
        return self.targets or (() if self.target is None else (self.target,))

    def reduced(self, costs: Mapping[str, float]) -> float:
        """One value of the costs on its targets, given by the target's name."""
        values = [costs[target] for target in self.priced_on]
        return math.fsum(values) if self.reduce == "sum" else max(values)

    def estimate(self, estimates: Mapping[str, Estimate]) -> Estimate:
        """One estimate of those on its targets, given by the target's name.

        Mean and upper end of the interval are those of the targets, reduced. For a sum this is as
        if all were underrated at once: the devices' predictors learn from the same experience, so
        their errors are not independent.
        """
        if not self.targets:
            [target] = self.priced_on
            return estimates[target]
        mean = self.reduced({t: e.mean for t, e in estimates.items()})
        upper = self.reduced({t: e.interval90[1] for t, e in estimates.items()})
        std = mean * math.sinh(math.log(upper / mean) / NORMAL_90)
        kinds = {estimates[target].kind for target in self.targets}
        kind = kinds.pop() if len(kinds) == 1 else "modelled"
        return Estimate(self.metric, mean, std, kind, self.label.removeprefix(f"{self.metric}@"))

    def loss(self, value: float) -> float:
        """The value, turned such that smaller is better."""
        return value if self.direction == "minimize" else -value

    def violation(self, value: float) -> float:
        """By how much the limit is missed, in the metric's unit; at most 0 where it is kept."""
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
    """What a metric on a target is called."""
    return f"{metric}@{target}"


def check_objectives(
    objectives: Sequence[Objective], task_metrics: Mapping[str, Direction]
) -> None:
    """Refuse objectives that cannot be served.

    Args:
        objectives: In the order of the recipe.
        task_metrics: Direction of each metric of the task.

    Raises:
        ConfigError: There is none, or one is unknown, without its target, there twice or in the
            wrong direction.
    """
    if not objectives:
        raise ConfigError("the recipe has no [[objective]]; give at least one")
    directions: dict[str, Direction] = {**task_metrics, LATENCY: "minimize"}
    directions |= dict.fromkeys(COUNTED, "minimize")
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
        if (metric == LATENCY) != bool(objective.priced_on):
            wanted = "needs a target" if metric == LATENCY else "takes no target"
            raise ConfigError(f"objective {metric!r} {wanted}; see `hwnas devices`")
    labels = [objective.label for objective in objectives]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"objective {label!r} is there twice; remove one")


def losses(
    objectives: Sequence[Objective], rows: Sequence[Mapping[str, float]]
) -> npt.NDArray[np.float64]:
    """Values by label as an array of shape (len(rows), len(objectives)), smaller is better."""
    table = [[o.loss(row[o.label]) for o in objectives] for row in rows]
    return np.array(table, dtype=np.float64).reshape(len(rows), len(objectives))


def weighed(
    objectives: Sequence[Objective], rows: Sequence[Mapping[str, float]]
) -> npt.NDArray[np.float64]:
    """`losses` on scales on which distances compare: costs by their logarithms.

    Half the latency is as far at one end of a front as at the other.
    """
    table = losses(objectives, rows)
    costs = [o.is_cost for o in objectives]
    table[:, costs] = np.log(np.maximum(table[:, costs], np.finfo(np.float64).tiny))
    return table


def violations(objectives: Sequence[Objective], values: Mapping[str, float]) -> dict[str, float]:
    """For each objective with a limit, by how much it is missed; at most 0 where it is kept."""
    return {o.label: o.violation(values[o.label]) for o in objectives if o.limit is not None}
