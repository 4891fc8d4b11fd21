"""Image classification: one class per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hwnas.deploy.io import OutputMeaning
from hwnas.errors import ConfigError, DataError
from hwnas.registry import Plugin
from hwnas.search.data.image_data import ImageData
from hwnas.search.tasks.delta_method import MetricValue
from hwnas.search.tasks.rank_metrics import RANK_METRICS, FractionMetrics, rank_metrics
from hwnas.search.tasks.task import LabelTask, check_metrics

__all__ = ["PLUGINS", "Classification", "classification"]

_METRICS = ("accuracy", "top5_accuracy", "balanced_accuracy", "macro_f1", *RANK_METRICS)
_TOP = 5
_OTHER_TASKS: Mapping[str, str] = {
    "masks": "segmentation",
    "boxes": "detection",
    "pictures": "super-resolution",
    "tokens": "language-model",
}


@dataclass(frozen=True)
class Classification(FractionMetrics, LabelTask):
    """Classification task: each image belongs to exactly one class.

    Attributes:
        metric_names: Names of the metrics, of ``"accuracy"``, ``"top5_accuracy"``,
            ``"balanced_accuracy"``, ``"macro_f1"``, ``"auroc"`` and ``"average_precision"``;
            training reports the first.
        class_weights: Weight of each class in the loss; None for equal weights.

    Raises:
        ConfigError: A metric is unknown, named twice, or not defined for so few classes; or the
            weights are not one positive number for each class.
    """

    label_smoothing: float = 0.1
    metric_names: tuple[str, ...] = ("accuracy",)
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_metrics()
        weights = self.class_weights
        if weights is not None and not (len(weights) == self.outputs and min(weights) > 0):
            raise ConfigError(
                f"task.class_weights is {list(weights)}; expected 'balanced', or a number above 0 "
                f"for each of {self.outputs} classes"
            )

    def _check_metrics(self) -> None:
        names = self.metric_names
        check_metrics(names, _METRICS)
        if "top5_accuracy" in names and self.outputs <= _TOP:
            raise ConfigError(
                f"task.metrics has top5_accuracy, which is always 1 for {self.outputs} classes; "
                "leave it out"
            )

    @property
    def name(self) -> str:
        """Name of the task, ``"classification"``."""
        return "classification"

    @property
    def meaning(self) -> OutputMeaning:
        """Meaning of the outputs: one logit per class."""
        return OutputMeaning("class_scores", self.class_names)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy with label smoothing, in nats.

        With class weights it is the weighted mean over images.
        """
        weights = self.class_weights
        return functional.cross_entropy(
            outputs.float(),
            targets,
            None if weights is None else torch.tensor(weights, device=outputs.device),
            label_smoothing=self.label_smoothing,
        )

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """Return the Kullback-Leibler divergence KL(teacher || network), in nats."""
        log_q = outputs.float().log_softmax(dim=1)
        log_p = teacher_outputs.detach().float().log_softmax(dim=1)
        return functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return what the metrics need of each image.

        Returns:
            ``accuracy`` and ``top5_accuracy``: 1 if the highest logit, or one of the five highest,
            is that of the right class, else 0; (N,). For metrics of classes also one-hot vectors
            (N, classes): the right class in ``true``, the predicted one in ``predicted``, and in
            ``hits`` the predicted one if it is right, else zeros.
        """
        wanted, classes = self.metric_names, self.outputs
        predicted = outputs.argmax(dim=1)
        found = {"accuracy": (predicted == targets).float()}
        if "top5_accuracy" in wanted:
            top = outputs.topk(_TOP, dim=1).indices
            found["top5_accuracy"] = (top == targets[:, None]).any(dim=1).float()
        if {"balanced_accuracy", "macro_f1"}.intersection(wanted):
            found["true"] = functional.one_hot(targets, classes).float()
            found["predicted"] = functional.one_hot(predicted, classes).float()
            found["hits"] = found["true"] * found["predicted"]
        return found

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the metrics of the whole split.

        ``accuracy`` and ``top5_accuracy`` are shares of images. ``balanced_accuracy`` is the mean
        over classes of the share of a class's images that are recognised (Brodersen et al., "The
        Balanced Accuracy and Its Posterior Distribution", ICPR 2010). ``macro_f1`` is the mean over
        classes of the harmonic mean of precision and recall. A class without images is left out,
        of ``macro_f1`` only if it is not predicted either.
        """
        found = {name: means[name] for name in self.metric_names if name in means}
        if "balanced_accuracy" in self.metric_names:
            there = means["true"] > 0
            found["balanced_accuracy"] = (means["hits"][there] / means["true"][there]).mean()
        if "macro_f1" in self.metric_names:
            both = means["true"] + means["predicted"]
            there = both > 0
            found["macro_f1"] = (2 * means["hits"][there] / both[there]).mean()
        return found

    def rank_values(self, outputs: Tensor, targets: Tensor) -> dict[str, MetricValue]:
        """Return the metrics of ranks: means over classes, each class against all others.

        Images are ranked by the probability of the class; see `auroc` and `average_precision`.
        """
        true = functional.one_hot(targets, self.outputs)
        return rank_metrics(self.rank_metrics, outputs.double().log_softmax(dim=1), true)


def classification(
    data: ImageData,
    label_smoothing: float = 0.1,
    metrics: Sequence[str] = ("accuracy",),
    class_weights: Literal["balanced"] | Sequence[float] | None = None,
) -> Classification:
    """Return the classification task of a data set.

    Args:
        data: Data set that gives the classes, and size and colour statistics of the images.
        label_smoothing: Share of the target probability that is spread over all classes, in [0, 1).
        metrics: Names of the metrics; see `Classification`.
        class_weights: Weight of each class in the loss. ``"balanced"`` is inversely proportional to
            the number of training images of the class, 1 on average over these images; None for
            equal weights.

    Raises:
        ConfigError: ``label_smoothing`` is out of range, or metrics or weights cannot be used.
        DataError: The targets of the data are values or masks, not classes.
    """
    if data.kind in _OTHER_TASKS:
        raise DataError(
            f"the targets are {data.kind}, not classes of whole images; set task.name = "
            f"'{_OTHER_TASKS[data.kind]}'"
        )
    if data.class_names is None:
        raise DataError(
            "the targets are values, not classes; give integer labels (N,), or set task.name to "
            "'regression' or 'multilabel'"
        )
    weights: tuple[float, ...] | None = None
    if class_weights == "balanced":
        counts = np.bincount(data.train.targets, minlength=len(data.class_names))
        weights = tuple((len(data.train) / len(counts) / counts).tolist())
    elif class_weights is not None:
        weights = tuple(map(float, class_weights))
    return Classification(
        data.class_names, data.preprocessing, label_smoothing, tuple(metrics), weights
    )


PLUGINS = (
    Plugin(
        "task",
        "classification",
        classification,
        "One class per image; metrics accuracy, top-5 and balanced accuracy, macro F1, AUROC, "
        "average precision",
    ),
)
