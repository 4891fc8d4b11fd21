"""Table ``[deploy]`` of a recipe: fine-tuning and delivery of the finalists."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from hwnas.config_class import config_class
from hwnas.errors import ConfigError
from hwnas.search.engine.placement import check_request
from hwnas.search.training import TrainConfig

__all__ = ["DeployConfig"]

_FINETUNE_EPOCHS = 1.0


@config_class
@dataclass(frozen=True)
class DeployConfig:
    """Table ``[deploy]``: settings of the finalists.

    Attributes:
        top: Number of finalists that become bundles.
        replacements: Number of rounds in which finalists that fail or violate a limit are
            replaced by the next candidates.
        spare: Number of candidates that the first of these rounds tries at least. Where fewer have
            to be replaced, the others become further bundles, if they meet the limits.
        finetune_epochs: Passes over the training images in which each finalist is fine-tuned alone;
            1 if ``finetune_minutes`` is not given either; 0 for no fine-tuning.
        finetune_minutes: Fine-tuning time of each finalist, which gives small networks more
            passes; either this or ``finetune_epochs``.
        finetune_learning_rate: Peak learning rate of the fine-tuning.
        finetune_norm_statistics: Statistics of batch normalisation in the fine-tuning: ``"batch"``,
            those of each batch; or ``"fixed"``, those of the training images before it. With fixed
            ones, a convolution and its normalisation are computed as one (Tune mode,
            `hwnas.search.training.tune_mode`), so that a step takes less time and memory.
        finetune_seeds: Number of fine-tunings of each finalist, which differ in their seed. The
            best one on validation images is delivered, and the test scores of all are reported.
        formats: Further file formats that the network of each bundle is converted to, such as
            ``"mnn"``; see `hwnas.deploy.file_formats`.
        reference: Whether a reference network, MobileNetV3-Small as wide as the limits allow, is
            trained alone with the settings of ``[train]``, for comparison
            (`hwnas.stages.finalists.reference`).
        reference_minutes: Training time of the reference network; that of a candidate, or a
            finalist's share of the supernet's training, if None.
        gpus_per_worker: GPUs that the fine-tuning of each finalist reserves, perhaps a share of
            one; 0 for none. None for one GPU, if this machine has any.
    """

    top: int = 3
    replacements: int = 2
    spare: int = 0
    finetune_epochs: float | None = None
    finetune_minutes: float | None = None
    finetune_learning_rate: float = 1e-3
    finetune_norm_statistics: Literal["batch", "fixed"] = "batch"
    finetune_seeds: int = 1
    formats: tuple[str, ...] = ()
    reference: bool = False
    reference_minutes: float | None = None
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        check_request("deploy", None, self.gpus_per_worker)
        fewest = {"top": 1, "replacements": 0, "spare": 0, "finetune_seeds": 1}
        for name, least in fewest.items():
            if getattr(self, name) < least:
                raise ConfigError(
                    f"deploy.{name} is {getattr(self, name)}; expected at least {least}"
                )
        if self.spare and not self.replacements:
            raise ConfigError(
                f"deploy.spare is {self.spare}, but deploy.replacements is 0, so there is no round "
                "in which further candidates could be tried; raise deploy.top instead"
            )
        if self.finetune_seeds > 1 and 0 in (self.finetune_epochs, self.finetune_minutes):
            raise ConfigError(
                f"deploy.finetune_seeds is {self.finetune_seeds}, but there is no fine-tuning that "
                "could differ; leave it out, or raise finetune_epochs or finetune_minutes above 0"
            )
        if self.finetune_epochs is not None and self.finetune_minutes is not None:
            raise ConfigError(
                "[deploy] has both finetune_epochs and finetune_minutes; remove one of them"
            )
        for name in ("finetune_epochs", "finetune_minutes"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"deploy.{name} is {value}; expected at least 0")
        for name in ("finetune_learning_rate", "reference_minutes"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"deploy.{name} is {value}; expected a number above 0")

    @property
    def fixes_statistics(self) -> bool:
        """True if batch normalisation keeps its statistics in the fine-tuning."""
        return self.finetune_norm_statistics == "fixed"

    def fine_tuning(self, training: TrainConfig) -> TrainConfig | None:
        """Return the training settings for fine-tuning a finalist; None without fine-tuning.

        Args:
            training: Settings of the training before it.
        """
        epochs, minutes = self.finetune_epochs, self.finetune_minutes
        if epochs is None and minutes is None:
            epochs = _FINETUNE_EPOCHS
        if 0 in (epochs, minutes):
            return None
        return replace(
            training,
            epochs=epochs,
            budget_minutes=minutes,
            learning_rate=self.finetune_learning_rate,
        )
