"""The images of a step, and what is to be learned of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hwnas.search.task import Task

__all__ = ["Batch", "Mixed"]


@dataclass(frozen=True)
class Mixed:
    """What else is seen in images of which parts are of other images.

    Attributes:
        targets: Of the other images, first dimension N.
        share: Of each image that is from the other one, in [0, 1].
    """

    targets: Tensor
    share: float


@dataclass(frozen=True)
class Batch:
    """Images with their targets, all on one device.

    Attributes:
        images: (N, H, W, C) uint8.
        targets: As the task has them, first dimension N.
        rows: Of the split, one for each image, int64 (N,); None where nobody asks for them.
        mixed: What else is in the images, if anything.
        weight: Of these images among all of a step, in (0, 1].
    """

    images: Tensor
    targets: Tensor
    rows: Tensor | None = None
    mixed: Mixed | None = None
    weight: float = 1.0

    def to(self, device: torch.device) -> Batch:
        """Return the same on a device."""
        mixed = self.mixed
        return replace(
            self,
            images=self.images.to(device),
            targets=self.targets.to(device),
            rows=None if self.rows is None else self.rows.to(device),
            mixed=None if mixed is None else replace(mixed, targets=mixed.targets.to(device)),
        )

    def parts(self, number: int) -> Iterator[Batch]:
        """Yield so many parts, each with its share of all images as its weight."""
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
        """Return the task's loss, where images are mixed that of both targets by their shares."""
        loss = task.loss(outputs, self.targets)
        if self.mixed is None:
            return loss
        share = self.mixed.share
        return (1 - share) * loss + share * task.loss(outputs, self.mixed.targets)
