"""What a number is worth: where it comes from and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from hwnas.deploy.device import Target
from hwnas.errors import ConfigError
from hwnas.interval import Interval, lognormal_interval
from hwnas.search_spaces import SearchSpace, Workload

__all__ = ["NORMAL_90", "CostKind", "CostSource", "Estimate", "Predictor", "check_pairs"]

NORMAL_90 = 1.6448536269514722  # the 95% quantile of the normal distribution

CostKind = Literal["measured", "predicted", "simulated", "modelled", "table"]


@dataclass(frozen=True)
class Estimate:
    """One cost of one network on one target.

    Attributes:
        metric: E.g. ``"latency_ms"``.
        mean: Expected value, in the unit that the metric's name ends with.
        std: Standard deviation of what is not known, in the same unit; at least 0.
        kind: Where the number comes from.
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
        """A predicted log-normal cost: its median, and half the width of its one-sigma interval."""
        median = math.exp(log_mean)
        return cls(metric, median, median * math.sinh(log_std), "predicted", target)

    @property
    def interval90(self) -> tuple[float, float]:
        """Below the first with a probability of 5%, above the second with the same.

        Of a log-normal distribution: costs are positive, and their errors are factors.
        """
        found = self.interval(0.9)
        return found.low, found.high

    def interval(self, level: float) -> Interval:
        """Between which it lies with a probability of ``level``; see `interval90`."""
        return lognormal_interval(self.mean, self.std, level)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the fields of this estimate."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Estimate:
        """The inverse of `to_json`."""
        return cls(**data)


def check_pairs(workloads: Sequence[Workload], targets: Sequence[Target], device: str) -> None:
    """Refuse what a predictor of one device cannot price.

    Raises:
        ConfigError: There is not one target for each workload, or one is not ``device``.
    """
    if len(workloads) != len(targets):
        raise ConfigError(f"got {len(workloads)} workloads and {len(targets)} targets")
    for target in targets:
        if target.name != device:
            raise ConfigError(f"this predictor is of {device}, not of {target.name}")


class CostSource(Protocol):
    """Anything that prices networks: a predictor, a table, a simulator."""

    def cost(self, workloads: Sequence[Workload], targets: Sequence[Target]) -> list[Estimate]:
        """One estimate for each pair of workload and target; both of the same length."""


class Predictor(CostSource, Protocol):
    """A cost source that learns from measurements."""

    def adapt(self, workloads: Sequence[Workload], latencies_ms: Sequence[float]) -> Predictor:
        """A new predictor that has learnt these measurements of one target as well."""

    def choice_costs(self, space: SearchSpace, target: Target) -> dict[str, dict[str, float]]:
        """Expected cost of each option of each choice, over networks drawn from the space."""
