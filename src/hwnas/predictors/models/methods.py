"""Interface of methods that predict costs on an unseen device: their inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hwnas.predictors.features.blocks import Blocks
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces.tabular import Codes, TabularSpace

__all__ = [
    "DeviceMeasurement",
    "Encoder",
    "Forecast",
    "KnownDevices",
    "Learner",
    "Measure",
    "Method",
    "Rows",
]

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DeviceMeasurement:
    """Measurement of one network on the new device.

    Attributes:
        cost: Cost in the unit of the table.
        latency_ms: Latency that was measured along with an energy; None if it is not known.
    """

    cost: float
    latency_ms: float | None = None


Measure = Callable[[int], DeviceMeasurement]
"""Function that measures the network of a row on the new device."""


@dataclass(frozen=True)
class KnownDevices:
    """Data on known devices, before anything is measured on the new one.

    Attributes:
        space: Space of the networks.
        codes: Codes of all networks of the table, of shape (N, positions).
        pool: Rows whose costs on the known devices are known.
        devices: Names of the K known devices.
        costs: Positive costs, of shape (len(pool), K).
        latencies_ms: For energy, latencies of the same shape; NaN where there is none.
    """

    space: TabularSpace
    codes: Codes
    pool: Rows
    devices: tuple[str, ...]
    costs: Numbers
    latencies_ms: Numbers | None = None


@dataclass(frozen=True)
class Forecast:
    """Predicted costs of some rows, each of shape (m,), in the unit of the table.

    Attributes:
        cost: Median of the predicted distribution.
        lower: Bound below which the cost lies with a probability of 5%.
        upper: Bound above which the cost lies with a probability of 5%.
    """

    cost: Numbers
    lower: Numbers
    upper: Numbers


Encoder = Callable[[KnownDevices], Blocks]
"""Function that returns features of all networks of the table, of shape (N, F), in blocks."""


class Learner(Protocol):
    """Method that has learnt from the sources."""

    def predict(
        self,
        offered: Rows,
        queries: Rows,
        samples: int,
        measure: Measure,
        rng: np.random.Generator,
    ) -> Forecast:
        """Measure at most ``samples`` of the offered rows, then predict the queries."""
        ...


class Method(Protocol):
    """Method that predicts costs on a device from those on others and a few of its own."""

    def __call__(self, sources: KnownDevices) -> Learner:
        """Learn from the sources, once for all new devices."""
        ...
