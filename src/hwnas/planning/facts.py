"""What a plan is made from."""

from __future__ import annotations

from dataclasses import dataclass

from hwnas.search.data import ImageData
from hwnas.search.raw_images import TargetKind

__all__ = ["Facts"]


@dataclass(frozen=True)
class Facts:
    """The data and the budget of a job.

    Attributes:
        images: To train on.
        image_shape: Height, width and channels of the images.
        kind: Whether targets are classes, values or masks.
        minutes: Budget of the whole job, wall-clock.
        cores: How many networks can be trained at once.
        most_macs: Multiply-accumulates of the largest networks that keep the limits, about; None
            if all networks do.
    """

    images: int
    image_shape: tuple[int, int, int]
    kind: TargetKind
    minutes: float
    cores: int
    most_macs: float | None = None

    @classmethod
    def of(cls, data: ImageData, minutes: float, cores: int) -> Facts:
        """Return those of a data set."""
        return cls(len(data.train), data.image_shape, data.kind, minutes, cores)
