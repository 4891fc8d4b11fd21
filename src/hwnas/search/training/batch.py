"""Images and targets of one training step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hwnas.search.tasks.task import Task

__all__ = ["Batch", "Mixed"]


@dataclass(frozen=True)
class Mixed:
    """Second targets of images that are mixed with other images (CutMix).

    Attributes:
        targets: Targets of the other images, first dimension N.
        share: Share of each image that comes from the other image, in [0, 1].
    """

    targets: Tensor
    share: float


@dataclass(frozen=True)
class Batch:
    """Images with their targets, all on one device.

    Attributes:
        images: Images, (N, H, W, C) uint8.
        targets: Targets in the task's format, first dimension N.
        rows: Index of each image in the split, int64 (N,); None if not needed.
        mixed: Second targets of mixed images; None if the images are not mixed.
        weight: Share of these images in the step, in (0, 1].
    """

    images: Tensor
    targets: Tensor
    rows: Tensor | None = None
    mixed: Mixed | None = None
    weight: float = 1.0

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        mixed = self.mixed
        return replace(
            self,
            images=self.images.to(device),
            targets=self.targets.to(device),
            rows=None if self.rows is None else self.rows.to(device),
            mixed=None if mixed is None else replace(mixed, targets=mixed.targets.to(device)),
        )

    def parts(self, number: int) -> Iterator[Batch]:
        """Yield ``number`` parts, each with its share of the images as its weight.

        A part that would have no images is left out.
        """
        ends = torch.arange(len(self.images)).tensor_split(number)
        for place in (slice(int(rows[0]), int(rows[-1]) + 1) for rows in ends if len(rows)):
            mixed = self.mixed
            images = self.images[place]
            yield Batch(
                images,
                self.targets[place],
                None if self.rows is None else self.rows[place],
                None if mixed is None else replace(mixed, targets=mixed.targets[place]),
                len(images) / len(self.images),
            )

    def loss(self, task: Task, outputs: Tensor) -> Tensor:
        """Return the task's loss; for mixed images, the losses of both targets by their shares."""
        loss = task.loss(outputs, self.targets)
        if self.mixed is None:
            return loss
        share = self.mixed.share
        return (1 - share) * loss + share * task.loss(outputs, self.mixed.targets)
