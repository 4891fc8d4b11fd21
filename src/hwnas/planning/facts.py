"""Facts about a job from which its plan is made."""

from __future__ import annotations

from dataclasses import dataclass

from hwnas.search.data.image_data import ImageData
from hwnas.search.data.raw_images import TargetKind

__all__ = ["JobFacts"]


@dataclass(frozen=True)
class JobFacts:
    """Data and budget of a job.

    Attributes:
        images: Number of training images.
        image_shape: Height, width and channels of the images.
        kind: Kind of the targets.
        minutes: Wall-clock budget of the whole job.
        cores: Number of networks that can be trained at once.
        gpus: Number of GPUs that they are trained on; 0 if they are trained on CPUs.
        most_macs: Approximate multiply-accumulates of the largest networks that meet the limits;
            None if all networks do.
        targets: Number of targets.
        formats: Number of number formats that each network is scored in.
        converts: Whether networks are scored in other number formats than fp32.
        validation_images: Number of validation images.
        pretrained: Whether the networks start from trained weights.
        batch_norm: Whether networks that start from trained weights have batch normalisation.
        spent_minutes: Part of the budget that was spent before the plan, by loading the data and
            measuring the speed of the machine.
    """

    images: int
    image_shape: tuple[int, int, int]
    kind: TargetKind
    minutes: float
    cores: int
    gpus: int = 0
    most_macs: float | None = None
    targets: int = 1
    formats: int = 1
    converts: bool = False
    validation_images: int = 1000
    pretrained: bool = False
    batch_norm: bool = True
    spent_minutes: float = 0.0

    @classmethod
    def of(
        cls,
        data: ImageData,
        minutes: float,
        cores: int,
        gpus: int = 0,
        targets: int = 1,
        formats: int = 1,
    ) -> JobFacts:
        """Return the facts of a data set."""
        about = len(data.train), data.image_shape, data.kind
        return cls(
            *(*about, minutes, cores, gpus),
            targets=targets,
            formats=formats,
            validation_images=len(data.validation),
        )

    @property
    def trainers(self) -> int:
        """Number of workers that can train one supernet together."""
        return self.gpus or self.cores
