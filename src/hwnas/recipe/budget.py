"""Tables ``[run]`` and ``[compute]`` of a recipe: minutes of the whole job, and its workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hwnas.config_class import config_class
from hwnas.errors import ConfigError
from hwnas.search.engine.placement import check_request

__all__ = ["ComputeConfig", "RunConfig", "compute_values", "gpus_in"]

_LEAST_MINUTES = 3.0
_WHOLE = 100  # points


@config_class
@dataclass(frozen=True)
class RunConfig:
    """Table ``[run]``: the time budget of the whole job.

    Attributes:
        minutes: Wall-clock time from the start to the report. Settings that the recipe leaves open
            are planned for it (`hwnas.planning`) and written into the run's own recipe.
        max_loss_points: Largest loss of a finalist in the first metric on validation images,
            compared with the model that the space's weights are from: in hundredths for metrics
            that are proportions, otherwise in percent of that model's value. It becomes a limit on
            finalists, written into the run's own recipe. None for no limit.
    """

    minutes: float | None = None
    max_loss_points: float | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and not (
            math.isfinite(self.minutes) and self.minutes >= _LEAST_MINUTES
        ):
            raise ConfigError(
                f"run.minutes is {self.minutes:g}; expected at least {_LEAST_MINUTES:g}: "
                "calibration, export and timing alone take two minutes"
            )
        loss = self.max_loss_points
        if loss is None:
            return
        if not (math.isfinite(loss) and 0 <= loss < _WHOLE):
            raise ConfigError(
                f"run.max_loss_points is {loss:g}; expected at least 0 and less than {_WHOLE}: one "
                "point is .01 of a metric such as accuracy"
            )
        if self.minutes is None:
            raise ConfigError(
                "run.max_loss_points is for jobs with run.minutes; in other recipes, set the limit "
                'of the [[objective]], with limit_on = "finalists"'
            )


@config_class
@dataclass(frozen=True)
class ComputeConfig:
    """Table ``[compute]``: workers of all stages, unless the table of a stage says otherwise.

    Attributes:
        workers: Value of ``train.workers`` and of ``search.workers``.
        cpus_per_worker: Value of ``train.cpus_per_worker`` and of ``search.cpus_per_worker``.
        gpus_per_worker: Value of ``search.gpus_per_worker`` and of ``deploy.gpus_per_worker``.
            Training workers get a whole GPU each, unless it is 0.
        precision: Value of ``train.precision``.
    """

    workers: int | None = None
    cpus_per_worker: int | None = None
    gpus_per_worker: float | None = None
    precision: Literal["auto", "bf16", "fp32"] | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise ConfigError(f"compute.workers is {self.workers}; expected at least 0")
        check_request("compute", self.cpus_per_worker, self.gpus_per_worker)


_OF_STAGES = {
    "workers": ("train", "search"),
    "cpus_per_worker": ("train", "search"),
    "gpus_per_worker": ("train", "search", "deploy"),
    "precision": ("train",),
}
"""Tables that have a key of ``[compute]``, too."""


def gpus_in(table: str, of_all: float) -> float:
    """Return the GPUs of each worker of a stage's table, given those of ``[compute]``."""
    return int(of_all > 0) if table == "train" else of_all


def compute_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of stages that follow from ``[compute]``, by dotted key.

    Args:
        given: Recipe as tables.
    """
    compute, found = given.get("compute", {}), {}
    for key, tables in _OF_STAGES.items():
        if not isinstance(compute, Mapping) or compute.get(key) is None:
            continue
        for table in tables:
            value, own = compute[key], given.get(table, {})
            if key == "gpus_per_worker" and isinstance(value, int | float):
                value = gpus_in(table, value)
            if isinstance(own, Mapping) and key not in own:
                found[f"{table}.{key}"] = value
    return found
