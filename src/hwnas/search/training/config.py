"""How to train: the ``[train]`` table of a recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal

from hwnas.errors import ConfigError
from hwnas.plugin import closest, resolve
from hwnas.search.raw_images import TargetKind
from hwnas.search.training.augment import Augmentation
from hwnas.search.training.sampling import SAMPLING

__all__ = ["CONTINUABLE", "NO_EFFECT", "TrainConfig"]

SCHEMA = 1
"""Raised where a setting changes its meaning, so that no older weights pass for those of now."""
NO_EFFECT = frozenset({"checkpoint_seconds", "ranking_check", "ranking_epochs", "workers"})
"""Settings that decide nothing about trained weights; workers only the order of sums."""
CONTINUABLE = frozenset({"accumulate", "batch_size", "budget_minutes", "epochs"})
"""Settings that may change while a training goes on from its checkpoint."""

_ABOVE_ZERO = (
    "epochs",
    "budget_minutes",
    "learning_rate",
    "batch_size",
    "accumulate",
    "checkpoint_seconds",
    "ranking_epochs",
)
_FEWEST_RANKED = 4
_RESOLUTIONS = 8
_NAMES = {
    "distillation_loss": ("kl", "alpha"),
    "precision": ("auto", "bf16", "fp32"),
    "teacher": ("auto", "original", "largest"),
    "teacher_sees": ("augmented", "plain"),
}


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Attributes:
        epochs: Passes over the training images.
        budget_minutes: Training time, without start-up. With both, a training ends, and its
            learning rate falls, by the one that is nearer to its end.
        sampling: A name of `SAMPLING`, or ``"package.module:function"``, a `Sampling`. ``"auto"``
            is ``"progressive"``, or ``"sandwich"`` for a space with trained weights.
        random_subnets: Random networks in a sandwich step, beside the largest and the smallest;
            ``"teacher"``, ``"progressive"`` and ``"fair"`` have one more, in place of the smallest.
        distillation: Weight of the teacher against the labels, in [0, 1], for all networks of a
            step but the teacher itself.
        teacher: ``"original"``, the network that the weights come from, as it was given;
            ``"largest"``, the largest network of the supernet as it is trained, where a sampling
            rule puts it first; or ``"auto"``, which is the first for a space with trained weights
            (`SearchSpace.teacher`) and the second for others.
        teacher_sees: ``"augmented"``, the images of a step as the others see them; or ``"plain"``,
            each training image once, as it is, and what the original says of it is kept (the
            fixed teacher of Beyer et al., "Knowledge distillation: A good teacher is patient and
            consistent", CVPR 2022), which leaves more of a budget in minutes to small networks.
        distillation_loss: How far a network is from its teacher: ``"kl"``, the task's own, or
            ``"alpha"``, AlphaNet's adaptive and clipped alpha-divergence (tasks of classes).
        batch_size: Images of a step, over all workers.
        accumulate: In how many parts each worker's share of a batch goes through, one after the
            other, so that less memory is needed; normalisation sees one part at a time.
        learning_rate: At its peak.
        weight_decay: Of AdamW; normalisation and biases are spared.
        warmup: Share of the training in which the learning rate rises, in [0, 1).
        ema: Decay of the moving average of the weights that the training ends with, in [0, 1); 0
            ends with the weights themselves.
        precision: Of forward passes: ``"bf16"`` (autocast), ``"fp32"``, or ``"auto"``, which is the
            first on a GPU that computes in it and the second elsewhere.
        crop: Smallest area of a random crop of each image, as a share of the image's, in (0, 1]; 1
            for no crop. A crop may change values, and is for them only if they do not depend on
            where something is, or how large.
        first_resolution: Side of the images at the beginning, as a share of what a network takes,
            in (0, 1]. It rises in eighths (progressive resizing; Tan and Le, "EfficientNetV2",
            ICML 2021, section 4.2).
        full_resolution_from: Share of the training, in [0, 1), from which on images have their full
            size.
        shift_pixels: Images are shifted by up to this much, and their masks with them. None is 1
            for classes and masks, and 0 for values, which a shift may change: where something is,
            how large, how far away.
        flip: Whether images are mirrored left and right at random, and their masks with them.
        cutout: Side of a square that is erased from each image, as a share of the image's, in
            [0, 1].
        cutmix: Share of the steps, in [0, 1], in which a box of other images is pasted into each
            image, and labels count by area; not for values, nor with ``teacher_sees = "plain"``.
        label_smoothing: Share of the target probability that is spread over all classes, in [0, 1),
            in place of the task's own; the task's if None.
        workers: Processes that train together; 0 trains in this process, without Ray.
        checkpoint_seconds: Time between checkpoints.
        ranking_check: How many networks are trained alone after the supernet, to see whether it
            ranks them as they come out; 0 for no such check.
        ranking_epochs: Training of each of these.
    """

    epochs: float | None = None
    budget_minutes: float | None = None
    sampling: str = "auto"
    random_subnets: int = 1
    distillation: float = 0.5
    teacher: Literal["auto", "original", "largest"] = "auto"
    teacher_sees: Literal["augmented", "plain"] = "augmented"
    distillation_loss: Literal["kl", "alpha"] = "kl"
    batch_size: int = 64
    accumulate: int = 1
    learning_rate: float = 5e-3
    weight_decay: float = 0.02
    warmup: float = 0.05
    ema: float = 0.0
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    crop: float = 1.0
    first_resolution: float = 1.0
    full_resolution_from: float = 0.5
    shift_pixels: int | None = None
    flip: bool = False
    cutout: float = 0.0
    cutmix: float = 0.0
    label_smoothing: float | None = None
    workers: int = 1
    checkpoint_seconds: float = 60.0
    ranking_check: int = 0
    ranking_epochs: float = 5.0

    def __post_init__(self) -> None:
        if self.epochs is None and self.budget_minutes is None:
            raise ConfigError("[train] needs epochs or budget_minutes")
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"train.{name} is {value}; expected a number above 0")
        for name in ("weight_decay", "shift_pixels", "workers", "random_subnets"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"train.{name} is {value}; expected at least 0")
        if not 0 <= self.distillation <= 1:
            raise ConfigError(f"train.distillation is {self.distillation}; expected 0 to 1")
        for name in ("cutout", "cutmix"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"train.{name} is {value}; expected a share in [0, 1]")
        if self.cutmix and self.teacher_sees == "plain":
            raise ConfigError(
                "train.cutmix mixes images, of which a teacher that sees plain ones says nothing; "
                "set train.cutmix = 0, or train.teacher_sees = 'augmented'"
            )
        for name in ("crop", "first_resolution"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ConfigError(f"train.{name} is {value}; expected a share in (0, 1]")
        for name in ("warmup", "label_smoothing", "ema", "full_resolution_from"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"train.{name} is {value}; expected a share in [0, 1)")
        for name, known in _NAMES.items():
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"unknown train.{name} {getattr(self, name)!r}; "
                    f"{closest(str(getattr(self, name)), known)}"
                )
        if self.ranking_check and self.ranking_check < _FEWEST_RANKED:
            raise ConfigError(
                f"train.ranking_check is {self.ranking_check}; expected at least {_FEWEST_RANKED} "
                "networks, or 0 for no check: fewer have no ranking to speak of"
            )
        self._check_parts()
        if ":" not in self.sampling:
            resolve("train.sampling", self.sampling, SAMPLING)

    def _check_parts(self) -> None:
        if self.accumulate > 1 and self.batch_size < 2 * self.accumulate * max(1, self.workers):
            raise ConfigError(
                f"train.accumulate is {self.accumulate}, which leaves less than 2 of "
                f"{self.batch_size} images for each part of each worker's share; normalisation "
                "needs two, so lower it"
            )

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides the trained weights and is not the default, and a schema number."""
        return {"schema": SCHEMA} | {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in NO_EFFECT
            and (each.default is MISSING or getattr(self, each.name) != each.default)
        }

    @property
    def continued_identity(self) -> dict[str, Any]:
        """What a checkpoint has in common with every training that may go on from it."""
        return {name: value for name, value in self.identity.items() if name not in CONTINUABLE}

    @property
    def continuable(self) -> dict[str, Any]:
        """The settings that may change while a training goes on from its checkpoint."""
        return {name: getattr(self, name) for name in sorted(CONTINUABLE)}

    def augmentation(self, kind: TargetKind) -> Augmentation:
        """Return what is done to images at random.

        Args:
            kind: What the targets are.
        """
        shift = self.shift_pixels
        if shift is None:
            shift = 0 if kind == "values" else 1
        return Augmentation(self.crop, shift, self.flip, self.cutout)

    def resolution(self, share: float) -> float:
        """Return the side of images, as a share of the full one, in (0, 1].

        Args:
            share: Of the training that is done, in [0, 1].
        """
        if share >= self.full_resolution_from:
            return 1.0
        first = self.first_resolution
        risen = first + (1 - first) * share / self.full_resolution_from
        return min(1.0, max(first, math.floor(risen * _RESOLUTIONS) / _RESOLUTIONS))

    def adjusted(self, settings: Mapping[str, Any]) -> TrainConfig:
        """The same training with some other settings; ``epochs`` takes the place of a budget.

        Raises:
            ConfigError: A setting is unknown or out of range.
        """
        unknown = set(settings) - {each.name for each in fields(self)}
        if unknown:
            known = [each.name for each in fields(self)]
            name = min(unknown)
            raise ConfigError(f"[train] has no key {name!r}; {closest(name, known)}")
        changed: dict[str, Any] = dict(settings)
        if "epochs" in settings:
            changed["budget_minutes"] = None
        return replace(self, **changed)
