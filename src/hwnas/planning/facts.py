"""What a plan is made from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hwnas.errors import ConfigError
from hwnas.search.data import ImageData
from hwnas.search.raw_images import TargetKind

__all__ = ["LEAST_MINUTES", "Facts"]

LEAST_MINUTES = 3.0
"""Calibration, export and timing take two of them, on two cores."""


@dataclass(frozen=True)
class Facts:
    """The data and the budget of a job.

    Attributes:
        images: To train on.
        image_shape: Height, width and channels of the images.
        kind: Whether targets are classes, values or masks.
        minutes: Budget of the whole job, wall-clock.
        cores: How many networks can be trained at once.
    """

    images: int
    image_shape: tuple[int, int, int]
    kind: TargetKind
    minutes: float
    cores: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.minutes) and self.minutes >= LEAST_MINUTES):
            raise ConfigError(
                f"run.minutes is {self.minutes:g}; the least that a job can do anything in is "
                f"{LEAST_MINUTES:g}"
            )

    @classmethod
    def of(cls, data: ImageData, minutes: float, cores: int) -> Facts:
        """Return those of a data set."""
        return cls(len(data.train), data.image_shape, data.kind, minutes, cores)
