"""Training settings: the ``[train]`` table of a recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from hwnas.config_class import config_class
from hwnas.errors import ConfigError
from hwnas.hashing import default_of
from hwnas.plugin import closest, resolve
from hwnas.search.data.raw_images import TargetKind
from hwnas.search.engine.placement import (
    Node,
    WorkerResources,
    check_request,
    training_resources,
)
from hwnas.search.training.augment import Augmentation
from hwnas.search.training.sampling import SAMPLING

__all__ = ["CONTINUABLE", "NO_EFFECT", "TrainConfig"]

SCHEMA = 1
"""Version that is raised when a setting changes its meaning, so that older weights do not match."""
NO_EFFECT = frozenset(
    {
        "checkpoint_seconds",
        "cpus_per_worker",
        "gpus_per_worker",
        "ranking_check",
        "ranking_epochs",
        "workers",
    }
)
"""Settings without effect on the trained weights; ``workers`` and their resources affect the order
of sums only."""
_BY_CONTENT = frozenset({"weights"})
"""Settings that name files; what the files contain is an input of its own, whatever their names."""
CONTINUABLE = frozenset({"accumulate", "batch_size", "budget_minutes", "epochs"})
"""Settings that may change when a training is resumed from its checkpoint."""

_ABOVE_ZERO = (
    "epochs",
    "budget_minutes",
    "learning_rate",
    "clip_norm",
    "batch_size",
    "accumulate",
    "checkpoint_seconds",
    "patience",
    "ranking_epochs",
)
_AT_LEAST_ZERO = (
    "weight_decay",
    "weight_distribution",
    "shift_pixels",
    "workers",
    "random_subnets",
    "rand_augment",
)
_FEWEST_RANKED = 4
_RESOLUTIONS = 8
_NAMES = {
    "schedule": ("constant", "cosine", "linear"),
    "distillation_loss": ("kl", "alpha"),
    "precision": ("auto", "bf16", "fp32"),
    "quantisation": ("round", "noise"),
    "teacher": ("auto", "original", "largest", "previous"),
    "teacher_sees": ("augmented", "plain"),
}


@config_class
@dataclass(frozen=True)
class TrainConfig:
    """Training settings of a supernet or a single network.

    Attributes:
        epochs: Number of passes over the training images; with ``weights`` it may be 0. A training
            needs ``epochs`` or ``budget_minutes``; in a job with ``minutes``, they are planned.
        budget_minutes: Training time in minutes, without start-up. If both are given, the one that
            is nearer to its end decides the end of the training and the learning rate.
        patience: Number of epochs after which the training of a single network ends, if its score
            on validation images (the first metric of the task) was not the best in any of them;
            it then has the weights of its best score (early stopping). The learning rate remains
            that of the whole training. None for no such end, which supernets never have.
        weights: Trained weights that a supernet starts from: a run with a supernet of the same
            space, or a safetensors file; None for random ones. If the number of outputs differs,
            the output layer starts at random. A relative path starts from the recipe's folder.
        sampling: Sampling rule: a name of `SAMPLING`, or ``"package.module:function"``, a
            `Sampling`. ``"auto"`` is ``"progressive"``, or ``"sandwich"`` for trained weights.
        random_subnets: Number of random networks in a sandwich step, in addition to the largest and
            the smallest; ``"teacher"``, ``"progressive"`` and ``"fair"`` draw one more instead of
            the smallest.
        distillation: Weight of the distillation loss against the loss on labels, in [0, 1], for all
            networks of a step except the teacher itself.
        teacher: ``"original"``, the given network that the weights come from; ``"largest"``, the
            largest network of the supernet during its training, if the sampling rule puts it first;
            ``"previous"``, the network before it in the step, where ``"largest"`` would teach all;
            or ``"auto"``, which is ``"original"`` for a space with trained weights
            (`SearchSpace.teacher`) and ``"largest"`` otherwise.
        teacher_sees: ``"augmented"``, the same augmented images as the students in each step; or
            ``"plain"``, each training image once without augmentation, with the original's outputs
            stored (the fixed teacher of Beyer et al., "Knowledge distillation: A good teacher is
            patient and consistent", CVPR 2022). Stored outputs save the teacher's forward passes,
            which take the largest share of a step for small networks.
        distillation_loss: Loss between a network and its teacher: ``"kl"``, the task's distillation
            loss, or ``"alpha"``, AlphaNet's adaptive and clipped alpha-divergence (tasks with
            classes).
        batch_size: Images in a step, over all workers.
        accumulate: Number of parts that each worker's share of a batch is split into (gradient
            accumulation). The parts are processed one after the other and need less memory;
            normalisation sees one part at a time.
        learning_rate: Peak learning rate.
        schedule: Decay of the learning rate from its peak: ``"cosine"`` or ``"linear"`` to zero, or
            ``"constant"``, which is no decay.
        optimizer: ``"adamw"``, ``"sgd"`` (momentum .9, Nesterov), or ``"package.module:Class"``, a
            class like those of ``torch.optim``.
        optimizer_options: Keyword arguments of the optimiser, such as ``{"momentum": 0.95}``.
        layer_rates: Learning rates of some weights, as shares of ``learning_rate``, by patterns of
            their names in the largest network, such as ``{"stem.*": 0.0, "stages.*": 0.1}``; the
            first pattern that matches counts, and other weights have 1. Weights with 0 are frozen;
            statistics of their normalisation still follow the images.
        clip_norm: Largest norm of all gradients together; longer ones are scaled down to it
            (Pascanu et al., "On the difficulty of training recurrent neural networks", ICML 2013).
            None for no limit.
        weight_decay: Weight decay of the optimiser; normalisation and biases have none.
        weight_distribution: Weight of the penalty on weights that are hard to quantise
            (`weight_distribution_loss`), for networks with bit widths of their own; 0 for none.
        quantisation: How the networks of a supernet with bit widths of their own are trained:
            ``"round"``, rounded, with gradients that pass straight through; or ``"noise"``, with
            noise in place of rounding (`quantisation_noise`). Fine-tuning always rounds.
        warmup: Share of the training in which the learning rate rises, in [0, 1).
        ema: Decay of the exponential moving average of the weights, in [0, 1). The training returns
            the average; with 0, it returns the weights themselves.
        precision: Precision of forward passes: ``"bf16"`` (autocast), ``"fp32"``, or ``"auto"``,
            which is ``"bf16"`` on a GPU that supports it and ``"fp32"`` elsewhere.
        crop: Smallest area of a random crop of each image, as a share of the image's, in (0, 1]; 1
            for no crop. Use crops with value targets only if the values do not depend on the
            position or size of an object.
        first_resolution: Side of the images at the beginning, as a share of the input side of a
            network, in (0, 1]. It rises in eighths (progressive resizing; Tan and Le,
            "EfficientNetV2", ICML 2021, section 4.2).
        full_resolution_from: Share of the training, in [0, 1), after which images have their full
            size.
        shift_pixels: Largest random shift of the images and their masks or boxes. None is 0 for
            values, which a shift may change, such as a position, size or distance, and for text,
            and otherwise 1.
        flip: If True, images and their masks or boxes are flipped horizontally at random.
        cutout: Side of a square that is erased from each image, as a share of the image's longer
            side, in [0, 1].
        rand_augment: Number of random operations on each image, such as rotation, contrast or
            posterisation; 0 for none (RandAugment; Cubuk et al., NeurIPS 2020). Value targets get
            no geometric operations. For images of one or three channels.
        rand_augment_strength: Strength of these operations, in [0, 1].
        erasing: Share of the images, in [0, 1], in which a rectangle is filled with noise (random
            erasing; Zhong et al., AAAI 2020).
        augment: ``"package.module:function"``, applied after the other augmentation, but before
            CutMix. Its arguments are images, uint8 (N, H, W, C), their targets, and a
            ``numpy.random.Generator``; it returns augmented images and targets of the same shapes
            and types.
        balanced: If True, an epoch draws images with replacement, so that all classes are equally
            frequent; for targets that are classes.
        cutmix: Share of the steps, in [0, 1], in which a box of another image is pasted into each
            image and labels are weighted by area; not for values, nor with
            ``teacher_sees = "plain"``.
        label_smoothing: Share of the target probability that is spread over all classes, in [0, 1);
            the task's own if None.
        workers: Number of processes that train together; 0 trains in this process, without Ray.
        cpus_per_worker: CPUs, and threads, of each of them; None for equal shares of all CPUs.
        gpus_per_worker: 1 for a GPU for each of them, 0 for none; None for a GPU if there are any.
        checkpoint_seconds: Time between checkpoints, in seconds.
        ranking_check: Number of networks that are trained alone after the supernet, to compare the
            supernet's ranking with theirs; 0 for no such check.
        ranking_epochs: Epochs of each of these trainings.
    """

    epochs: float | None = None
    budget_minutes: float | None = None
    patience: int | None = None
    weights: str | None = None
    sampling: str = "auto"
    random_subnets: int = 1
    distillation: float = 0.5
    teacher: Literal["auto", "original", "largest", "previous"] = "auto"
    teacher_sees: Literal["augmented", "plain"] = "augmented"
    distillation_loss: Literal["kl", "alpha"] = "kl"
    batch_size: int = 64
    accumulate: int = 1
    learning_rate: float = 5e-3
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    optimizer: str = "adamw"
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    layer_rates: Mapping[str, float] = field(default_factory=dict)
    clip_norm: float | None = None
    weight_decay: float = 0.02
    weight_distribution: float = 0.0
    quantisation: Literal["round", "noise"] = "round"
    warmup: float = 0.05
    ema: float = 0.0
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    crop: float = 1.0
    first_resolution: float = 1.0
    full_resolution_from: float = 0.5
    shift_pixels: int | None = None
    flip: bool = False
    cutout: float = 0.0
    rand_augment: int = 0
    rand_augment_strength: float = 0.3
    erasing: float = 0.0
    augment: str | None = None
    balanced: bool = False
    cutmix: float = 0.0
    label_smoothing: float | None = None
    workers: int = 1
    cpus_per_worker: int | None = None
    gpus_per_worker: int | None = None
    checkpoint_seconds: float = 60.0
    ranking_check: int = 0
    ranking_epochs: float = 5.0

    def __post_init__(self) -> None:
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if name == "epochs" and value == 0 and self.weights is not None:
                continue
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"train.{name} is {value}; expected a number above 0")
        for name in _AT_LEAST_ZERO:
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"train.{name} is {value}; expected at least 0")
        if not 0 <= self.distillation <= 1:
            raise ConfigError(f"train.distillation is {self.distillation}; expected 0 to 1")
        for name in ("cutout", "cutmix", "erasing", "rand_augment_strength"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"train.{name} is {value}; expected a share in [0, 1]")
        if self.cutmix and self.teacher_sees == "plain":
            raise ConfigError(
                "train.cutmix mixes images, but a teacher with train.teacher_sees = 'plain' has "
                "outputs for unmixed images only; set train.cutmix = 0, or train.teacher_sees = "
                "'augmented'"
            )
        for name in ("crop", "first_resolution"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ConfigError(f"train.{name} is {value}; expected a share in (0, 1]")
        for name in ("warmup", "label_smoothing", "ema", "full_resolution_from"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"train.{name} is {value}; expected a share in [0, 1)")
        for pattern, rate in self.layer_rates.items():
            if not (math.isfinite(rate) and rate >= 0):
                raise ConfigError(
                    f"train.layer_rates has {rate} for {pattern!r}; expected at least 0"
                )
        for name, known in _NAMES.items():
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"unknown train.{name} {getattr(self, name)!r}; "
                    f"{closest(str(getattr(self, name)), known)}"
                )
        if self.ranking_check and self.ranking_check < _FEWEST_RANKED:
            raise ConfigError(
                f"train.ranking_check is {self.ranking_check}; expected at least {_FEWEST_RANKED} "
                "networks, or 0 for no check: a ranking of fewer says little"
            )
        check_request("train", self.cpus_per_worker, self.gpus_per_worker, together=True)
        self._check_parts()
        if self.augment is not None and ":" not in self.augment:
            raise ConfigError(
                f'train.augment is {self.augment!r}; expected a function, "package.module:function"'
            )
        if ":" not in self.sampling:
            SAMPLING.find(self.sampling, "train.sampling")

    def check_budget(self) -> None:
        """Raise if the length of the training is not given.

        Raises:
            ConfigError: There are neither epochs nor minutes.
        """
        if self.epochs is None and self.budget_minutes is None:
            raise ConfigError("[train] needs epochs or budget_minutes")

    def _check_parts(self) -> None:
        if self.accumulate > 1 and self.batch_size < 2 * self.accumulate * max(1, self.workers):
            raise ConfigError(
                f"train.accumulate is {self.accumulate}, which leaves less than 2 of "
                f"{self.batch_size} images for each part of each worker's share; normalisation "
                "needs two, so lower train.accumulate"
            )

    @property
    def of_supernet(self) -> TrainConfig:
        """These settings for a supernet, whose training has no score to end early by."""
        return replace(self, patience=None)

    def worker_resources(self, nodes: Sequence[Node]) -> WorkerResources:
        """Return what each worker gets on a cluster; see `training_resources`."""
        return training_resources(nodes, self.workers, self.cpus_per_worker, self.gpus_per_worker)

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that affect the trained weights and differ from the default, with a schema."""
        return {"schema": SCHEMA} | {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in NO_EFFECT | _BY_CONTENT
            and getattr(self, each.name) != default_of(each)
        }

    @property
    def continued_identity(self) -> dict[str, Any]:
        """Settings that a checkpoint shares with every training that may resume from it."""
        return {name: value for name, value in self.identity.items() if name not in CONTINUABLE}

    @property
    def continuable(self) -> dict[str, Any]:
        """Settings that may change when a training is resumed from its checkpoint."""
        return {name: getattr(self, name) for name in sorted(CONTINUABLE)}

    def augmentation(self, kind: TargetKind) -> Augmentation:
        """Return the random augmentation of the images.

        Args:
            kind: Kind of the targets.

        Raises:
            ConfigError: The user's function is not found.
        """
        shift = self.shift_pixels
        if shift is None:
            shift = 0 if kind in ("values", "tokens") else 1
        return Augmentation(
            crop=self.crop,
            shift_pixels=shift,
            flip=self.flip,
            rand_augment=self.rand_augment,
            rand_augment_strength=self.rand_augment_strength,
            cutout=self.cutout,
            erasing=self.erasing,
            own=None if self.augment is None else resolve("train.augment", self.augment, {}),
        )

    def layer_rate(self, name: str) -> float:
        """Return the learning rate of a weight, as a share of the learning rate of the others."""
        found = (rate for key, rate in self.layer_rates.items() if fnmatchcase(name, key))
        return next(found, 1.0)

    def resolution(self, share: float) -> float:
        """Return the side of the images as a share of their full side, in (0, 1].

        Args:
            share: Share of the training that is done, in [0, 1].
        """
        if share >= self.full_resolution_from:
            return 1.0
        first = self.first_resolution
        risen = first + (1 - first) * share / self.full_resolution_from
        return min(1.0, max(first, math.floor(risen * _RESOLUTIONS) / _RESOLUTIONS))

    def adjusted(self, settings: Mapping[str, Any]) -> TrainConfig:
        """Return these settings with some replaced; given ``epochs`` remove the budget in minutes.

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
