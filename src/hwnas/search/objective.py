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
from hwnas.search_spaces import Workload

__all__ = [
    "COUNTED",
    "LATENCY",
    "Direction",
    "Objective",
    "check_objectives",
    "losses",
    "violations",
]

Direction = Literal["maximize", "minimize"]

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
    """

    metric: str
    direction: Direction
    target: str | None = None
    limit: float | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and not math.isfinite(self.limit):
            raise ConfigError(
                f"the limit of {self.label} is {self.limit}; expected a finite number"
            )

    @property
    def label(self) -> str:
        """``metric`` or ``metric@target``."""
        return self.metric if self.target is None else f"{self.metric}@{self.target}"

    def loss(self, value: float) -> float:
        """The value, turned such that smaller is better."""
        return value if self.direction == "minimize" else -value

    def violation(self, value: float) -> float:
        """By how much the limit is missed, in the metric's unit; at most 0 where it is kept."""
        return -1.0 if self.limit is None else self.loss(value) - self.loss(self.limit)


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
        if (metric == LATENCY) != (objective.target is not None):
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


def violations(objectives: Sequence[Objective], values: Mapping[str, float]) -> dict[str, float]:
    """For each objective with a limit, by how much it is missed; at most 0 where it is kept."""
    return {o.label: o.violation(values[o.label]) for o in objectives if o.limit is not None}
