"""Multi-label classification: each image has any number of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.nn import functional

from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.errors import ConfigError, DataError
from hwnas.registry import Plugin
from hwnas.search.data.image_data import ImageData
from hwnas.search.tasks.delta_method import MetricValue
from hwnas.search.tasks.rank_metrics import FractionMetrics, rank_metrics
from hwnas.search.tasks.task import check_metrics

__all__ = ["PLUGINS", "MultiLabel", "multilabel"]

_METRICS = ("average_precision", "auroc", "macro_f1", "label_accuracy", "exact_match")


@dataclass(frozen=True)
class MultiLabel(FractionMetrics):
    """Multi-label task: each image has none, one or several of K labels.

    Outputs are a logit for each label. A label whose probability, by the logistic function, is at
    least a half is predicted.

    Attributes:
        label_names: Names of the labels in the order of the outputs.
        preprocessing: Preprocessing at the size of the data's own images.
        metric_names: Names of the metrics, of ``"average_precision"`` (its mean over labels, often
            called mAP), ``"auroc"``, ``"macro_f1"``, ``"label_accuracy"`` and ``"exact_match"``;
            training reports the first.

    Raises:
        ConfigError: A metric is unknown, or named twice.
    """

    label_names: tuple[str, ...]
    preprocessing: Preprocessing
    metric_names: tuple[str, ...] = ("average_precision",)

    def __post_init__(self) -> None:
        check_metrics(self.metric_names, _METRICS)

    @property
    def name(self) -> str:
        """Name of the task, ``"multilabel"``."""
        return "multilabel"

    @property
    def outputs(self) -> int:
        """Number of outputs: one for each label."""
        return len(self.label_names)

    @property
    def meaning(self) -> OutputMeaning:
        """Meaning of the outputs: one logit per label."""
        return OutputMeaning("label_scores", self.label_names)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the binary cross-entropy, in nats: the mean over images and labels."""
        return functional.binary_cross_entropy_with_logits(outputs.float(), targets)

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """Return KL(teacher || network) of each label's probability, in nats: the mean over all."""
        teacher = teacher_outputs.detach().float()
        wanted = teacher.sigmoid()
        cross = functional.binary_cross_entropy_with_logits(outputs.float(), wanted)
        return cross - functional.binary_cross_entropy_with_logits(teacher, wanted)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the ``true`` and ``predicted`` labels of each image, and its ``hits``: (N, K).

        ``exact`` is 1 if all labels of the image are right, else 0; ``right`` is the share of its
        labels that are, present or absent; (N,).
        """
        predicted = (outputs >= 0).float()
        same = (predicted == targets).float()
        return {
            "true": targets,
            "predicted": predicted,
            "hits": targets * predicted,
            "right": same.mean(dim=1),
            "exact": same.prod(dim=1),
        }

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the metrics of the whole split that are functions of means.

        ``macro_f1`` is the mean over labels of the harmonic mean of precision and recall; a label
        that is neither present nor predicted is left out.
        """
        both = means["true"] + means["predicted"]
        there = both > 0
        found = {
            "macro_f1": (2 * means["hits"][there] / both[there]).mean(),
            "label_accuracy": means["right"],
            "exact_match": means["exact"],
        }
        return {name: value for name, value in found.items() if name in self.metric_names}

    def rank_values(self, outputs: Tensor, targets: Tensor) -> dict[str, MetricValue]:
        """Return the metrics of ranks: means over labels; see `auroc` and `average_precision`."""
        return rank_metrics(self.rank_metrics, outputs, targets)


def multilabel(
    data: ImageData,
    metrics: Sequence[str] = ("average_precision",),
    names: Sequence[str] = (),
) -> MultiLabel:
    """Return the multi-label task of a data set.

    Args:
        data: Data set whose targets are 0 or 1 for each label, and that gives size and colour
            statistics of the images.
        metrics: Names of the metrics; see `MultiLabel`.
        names: Names of the labels, in the order of the targets; by default those of the data, or
            else their numbers.

    Raises:
        ConfigError: A metric is unknown, or there is not a name for each label.
        DataError: The targets of the data are not 0 and 1 for each of two labels or more, or a
            label is on no training image, or on all.
    """
    if data.kind != "values":
        raise DataError(
            f"task multilabel needs a 0 or 1 for each label, but the targets are {data.kind}; name "
            "another task, or let data.source give such numbers (N, K)"
        )
    data.check_numbers("multilabel")
    for split in (data.train, data.validation, data.test):
        odd = np.flatnonzero(~np.isin(split.targets, (0, 1)).all(axis=1))
        if len(odd):
            raise DataError(
                f"task multilabel needs targets that are 0 or 1, but those of an image are "
                f"{split.targets[odd[0]].tolist()}; correct them, or name task regression"
            )
    labels = data.train.targets.shape[1]
    if labels < 2:
        raise DataError(
            "task multilabel needs two labels or more; for a single one, use task classification "
            "with two classes"
        )
    if names and len(names) != labels:
        raise ConfigError(
            f"task.names has {len(names)} names, but the targets have {labels} labels; give one "
            "for each"
        )
    named = tuple(names) or data.value_names or tuple(map(str, range(labels)))
    shares = data.train.targets.mean(axis=0)
    for label, share in zip(named, shares, strict=True):
        if share in (0, 1):
            raise DataError(
                f"label {label!r} is on {'all' if share else 'none'} of the training images, so "
                "there is nothing to learn; leave it out"
            )
    return MultiLabel(named, data.preprocessing, tuple(metrics))


PLUGINS = (
    Plugin(
        "task",
        "multilabel",
        multilabel,
        "Any number of labels per image; metrics average precision (mAP), AUROC, macro F1, label "
        "accuracy, exact match",
    ),
)
