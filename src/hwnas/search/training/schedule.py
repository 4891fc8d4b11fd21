"""Schedule of a training: learning rate, batches and end as functions of its progress."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from hwnas.search.data.image_data import Split
from hwnas.search.data.split import Rows
from hwnas.search.training.augment import cut_mixed
from hwnas.search.training.batch import Batch, Mixed
from hwnas.search.training.checkpoint import Position
from hwnas.search.training.config import TrainConfig

__all__ = ["Schedule"]


@dataclass(frozen=True)
class Schedule:
    """Order of the images and learning rate, as functions of the progress of a training.

    Attributes:
        config: Training settings.
        split: Training images.
        seed: Seed of the random numbers.
        offset: Steps that the images so far would have taken at this batch size, less the steps
            that they took; not 0 if earlier steps had another batch size.
    """

    config: TrainConfig
    split: Split
    seed: int
    offset: int = 0

    def __post_init__(self) -> None:
        self.config.check_budget()

    @property
    def steps_per_epoch(self) -> int:
        """Number of whole batches in one pass over the images."""
        return len(self.split) // self.config.batch_size

    def epoch(self, step: int) -> float:
        """Return the number of passes over the images before a step."""
        return (step + self.offset) / self.steps_per_epoch

    def ends_epoch(self, step: int) -> bool:
        """Return whether a step is the last one of an epoch."""
        return (step + 1 + self.offset) % self.steps_per_epoch == 0

    def share(self, step: int, seconds: float) -> float:
        """Return the used share of the budget, in steps or in seconds, whichever is larger."""
        shares = []
        if self.config.epochs is not None:
            steps = max(1, round(self.config.epochs * self.steps_per_epoch))
            shares.append((step + self.offset) / steps)
        if self.config.budget_minutes is not None:
            shares.append(seconds / (60 * self.config.budget_minutes))
        return max(shares)

    def learning_rate(self, share: float) -> float:
        """Return the learning rate: linear warm-up, then the decay of ``config.schedule``.

        The warm-up starts at a tenth of the peak. Cosine decay is that of Loshchilov and Hutter,
        "SGDR", ICLR 2017, without restarts.
        """
        peak, warmup = self.config.learning_rate, self.config.warmup
        if share < warmup:
            return peak * (share / warmup * 0.9 + 0.1)
        done = min((share - warmup) / (1 - warmup), 1.0)
        if self.config.schedule == "constant":
            return peak
        if self.config.schedule == "linear":
            return peak * (1 - done)
        return peak * 0.5 * (1 + math.cos(math.pi * done))

    def batch(self, step: int, rank: int = 0, world: int = 1, resolution: float = 1.0) -> Batch:
        """Return a worker's part of a step's images, augmented.

        Args:
            step: Index of the step, from 0.
            rank: Rank of the worker.
            world: Number of workers.
            resolution: Side of crops, as a share of the images' side, in (0, 1].
        """
        size = self.config.batch_size
        epoch, within = divmod(step + self.offset, self.steps_per_epoch)
        rows = self._order(epoch)[within * size : (within + 1) * size][rank::world]
        images, targets = self.split.take(rows)
        rng = np.random.default_rng([self.seed, step, rank, 1])
        height, width = (max(1, round(side * resolution)) for side in images.shape[1:3])
        augment = self.config.augmentation(self.split.kind)
        images, targets = augment(images, targets, rng, (height, width))
        mixed = None
        if self.config.cutmix and rng.random() < self.config.cutmix:
            images, targets, others, share = cut_mixed(images, targets, rng)
            mixed = Mixed(torch.from_numpy(others), share) if share else None
        return Batch(
            torch.from_numpy(images), torch.from_numpy(targets), torch.from_numpy(rows), mixed
        )

    def _order(self, epoch: int) -> Rows:
        """Return the rows of an epoch in their order; that of the last epoch is kept."""
        if epoch not in self._orders:
            rng, n = np.random.default_rng([self.seed, epoch]), len(self.split)
            balanced = self.config.balanced
            rows = rng.choice(n, n, p=self._probabilities) if balanced else rng.permutation(n)
            self._orders.clear()
            self._orders[epoch] = rows
        return self._orders[epoch]

    @cached_property
    def _orders(self) -> dict[int, Rows]:
        return {}

    @cached_property
    def _probabilities(self) -> npt.NDArray[np.float64]:
        """Probability of each row with which all classes are equally frequent."""
        classes = self.split.targets
        counts = np.bincount(classes)
        found: npt.NDArray[np.float64] = 1 / counts[classes] / np.count_nonzero(counts)
        return found

    def continued(self, position: Position) -> tuple[Schedule, Position] | None:
        """Resume from a checkpoint, possibly with another budget or batch size.

        Under another budget, the progress is the share of the new budget that is used up. The
        learning rate continues from there, even if it was zero at the end of the old budget.

        Returns:
            The resumed schedule, and the position in its terms. None if these settings end the
            training before the position, so that the training has to start again.
        """
        before, now = position.settings, self.config.continuable
        if not before or before == now:
            return replace(self, offset=position.offset), replace(position, settings=now)
        offset, parts = position.offset, position.parts
        if before["batch_size"] != now["batch_size"]:
            made = (position.step + offset) * self.steps_per_epoch
            offset = made // (len(self.split) // before["batch_size"]) - position.step
        if any(before[name] != now[name] for name in ("accumulate", "batch_size")):
            parts = 0
        schedule = replace(self, offset=offset)
        if schedule.share(position.step, position.seconds) >= 1:
            return None
        return schedule, replace(position, parts=parts, offset=offset, settings=now)
