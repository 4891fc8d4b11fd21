"""Measured cost of a network on a target, in any metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["MeasuredCost"]


@dataclass(frozen=True)
class MeasuredCost:
    """Measured cost of a network on a target.

    Attributes:
        metric: Name of the metric, e.g. ``"energy_mj"``.
        target: Name of the target.
        value: Cost of one run of a batch, in ``unit``.
        low: Lower end of the range of repeated measurements; for a latency its 20th percentile.
        high: Upper end of that range; for a latency its 80th percentile.
        unit: Unit of the three numbers.
        source: Clock or counter that was read.
        n: Number of repetitions.
    """

    metric: str
    target: str
    value: float
    low: float
    high: float
    unit: str
    source: str
    n: int

    def to_json(self) -> dict[str, Any]:
        """Return the row of a bundle's metrics."""
        values = {"value": self.value, "low": self.low, "high": self.high, "unit": self.unit}
        about = {"name": self.metric, "kind": "measured", "target": self.target}
        return {**about, **values, "source": self.source, "n": self.n}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> MeasuredCost:
        """Return the cost of a row of a bundle's metrics, as the inverse of `to_json`."""
        values = {k: v for k, v in row.items() if k not in ("name", "kind")}
        return cls(metric=row["name"], **values)
