"""Image classification: one class per image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from hwnas.deploy.io import OutputMeaning
from hwnas.errors import DataError
from hwnas.registry import Plugin
from hwnas.search.data.image_data import ImageData
from hwnas.search.tasks.task import LabelTask, Metric

__all__ = ["PLUGINS", "Classification", "classification"]


@dataclass(frozen=True)
class Classification(LabelTask):
    """Classification task: each image belongs to exactly one class."""

    label_smoothing: float = 0.1

    @property
    def name(self) -> str:
        """Name of the task, ``"classification"``."""
        return "classification"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Top-1 accuracy."""
        return (Metric("accuracy", "maximize", "fraction"),)

    @property
    def meaning(self) -> OutputMeaning:
        """Meaning of the outputs: one logit per class."""
        return OutputMeaning("class_scores", self.class_names)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy with label smoothing, in nats."""
        smoothing = self.label_smoothing
        return functional.cross_entropy(outputs.float(), targets, label_smoothing=smoothing)

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """Return the Kullback-Leibler divergence KL(teacher || network), in nats."""
        log_q = outputs.float().log_softmax(dim=1)
        log_p = teacher_outputs.detach().float().log_softmax(dim=1)
        return functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return ``accuracy``: 1 if the highest logit is that of the right class, else 0; (N,)."""
        return {"accuracy": (outputs.argmax(dim=1) == targets).float()}

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``accuracy``, the share of images whose predicted class is right."""
        return dict(means)


def classification(data: ImageData, label_smoothing: float = 0.1) -> Classification:
    """Return the classification task of a data set.

    Args:
        data: Data set that gives the classes, and size and colour statistics of the images.
        label_smoothing: Share of the target probability that is spread over all classes, in [0, 1).

    Raises:
        ConfigError: ``label_smoothing`` is out of range.
        DataError: The targets of the data are values or masks, not classes.
    """
    if data.kind == "masks":
        raise DataError(
            "the targets are masks, not classes of whole images; set task.name = 'segmentation'"
        )
    if data.class_names is None:
        raise DataError(
            "the targets are values, not classes; give integer labels, or name a task of your own: "
            'task.name = "package.module:object"'
        )
    return Classification(data.class_names, data.preprocessing, label_smoothing)


PLUGINS = (
    Plugin(
        "task", "classification", classification, "One class per image; metrics accuracy and loss"
    ),
)
