"""What any method for predicting costs on an unseen device is given, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hwnas.predictors.blocks import Blocks
from hwnas.predictors.gaussian_process import Numbers
from hwnas.search_spaces.tabular import Codes, TabularSpace

__all__ = ["Encoder", "Forecast", "Learner", "Measure", "Method", "Reading", "Rows", "Sources"]

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Reading:
    """One measurement of one network on the new device.

    Attributes:
        cost: In the unit of the table.
        latency_ms: Measured along with an energy; None where it is not known.
    """

    cost: float
    latency_ms: float | None = None


Measure = Callable[[int], Reading]
"""Measures the network of a row on the new device."""


@dataclass(frozen=True)
class Sources:
    """What is known before the new device is touched.

    Attributes:
        space: The networks' space.
        codes: All networks of the table, of shape (N, positions).
        pool: Rows whose costs on other devices are known.
        devices: Names of those devices, K of them.
        costs: Of shape (len(pool), K), positive.
        latencies_ms: For energy, of the same shape; NaN where there is none.
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
        cost: Median of what is expected.
        lower: The cost is below with a probability of 5%.
        upper: The cost is above with a probability of 5%.
    """

    cost: Numbers
    lower: Numbers
    upper: Numbers


Encoder = Callable[[Sources], Blocks]
"""Describes all networks of the table by features of shape (N, F), in blocks."""


class Learner(Protocol):
    """A method that has seen the sources."""

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
    """A way to predict costs on a device from those on others and a few of its own."""

    def __call__(self, sources: Sources) -> Learner:
        """Learn what the sources teach; done once for all new devices."""
        ...
