"""Estimates of costs: values with their uncertainty and origin, and interfaces of their sources."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.interval import Interval, lognormal_interval
from hwnas.search_spaces import SearchSpace, Workload

__all__ = ["NORMAL_90", "CostKind", "CostSource", "Estimate", "Predictor", "check_pairs"]

NORMAL_90 = 1.6448536269514722  # the 95% quantile of the normal distribution

CostKind = Literal["measured", "predicted", "simulated", "modelled", "table"]


@dataclass(frozen=True)
class Estimate:
    """Estimate of one cost of one network on one target.

    Attributes:
        metric: Name of the metric, e.g. ``"latency_ms"``.
        mean: Expected value, or the median of a log-normal prediction, in the unit that the
            metric's name ends with.
        std: Standard deviation of the uncertainty, in the same unit; at least 0.
        kind: Origin of the value.
        target: Name of the target, e.g. ``"cpu-onnxruntime-fp32-b1-t1"``.
    """

    metric: str
    mean: float
    std: float
    kind: CostKind
    target: str

    def __post_init__(self) -> None:
        if self.std < 0:
            raise ConfigError(
                f"the standard deviation of {self.metric} is {self.std}; expected >= 0"
            )

    @classmethod
    def log_normal(cls, metric: str, log_mean: float, log_std: float, target: str) -> Estimate:
        """Return a predicted log-normal cost as its median and half its one-sigma interval."""
        median = math.exp(log_mean)
        return cls(metric, median, median * math.sinh(log_std), "predicted", target)

    @property
    def interval90(self) -> tuple[float, float]:
        """Bounds of the 90% interval: the cost lies below, or above, with a probability of 5% each.

        The distribution is log-normal: costs are positive, and their errors are factors.
        """
        found = self.interval(0.9)
        return found.low, found.high

    def interval(self, level: float) -> Interval:
        """Return the interval that holds the cost with probability ``level``; see `interval90`."""
        return lognormal_interval(self.mean, self.std, level)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the fields of this estimate."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Estimate:
        """Return the estimate of a JSON object, as the inverse of `to_json`."""
        return cls(**data)


def check_pairs(workloads: Sequence[Workload], targets: Sequence[Target], device: str) -> None:
    """Raise if the predictor of one device cannot predict the costs of these pairs.

    Raises:
        ConfigError: There is not one target for each workload, or a target is not ``device``.
    """
    if len(workloads) != len(targets):
        raise ConfigError(
            f"got {len(workloads)} workloads and {len(targets)} targets; expected one for each"
        )
    for target in targets:
        if target.name != device:
            raise ConfigError(f"this predictor is for {device}, not for {target.name}")


class CostSource(Protocol):
    """Source of costs of networks: a predictor, a table, a simulator."""

    def cost(self, workloads: Sequence[Workload], targets: Sequence[Target]) -> list[Estimate]:
        """Return one estimate for each pair of workload and target; both have the same length."""


class Predictor(CostSource, Protocol):
    """Cost source that learns from measurements."""

    def adapt(self, workloads: Sequence[Workload], latencies_ms: Sequence[float]) -> Predictor:
        """Return a new predictor that has also learnt these measurements of one target."""

    def choice_costs(self, space: SearchSpace, target: Target) -> dict[str, dict[str, float]]:
        """Return the expected cost of each option of each choice, over networks of the space."""
