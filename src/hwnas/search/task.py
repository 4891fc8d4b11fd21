"""What is learned: from outputs and targets to a loss and to the metrics that a search reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor
from torch.nn import functional

from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.errors import ConfigError, DataError
from hwnas.search.data import ImageData

__all__ = [
    "Classification",
    "Metric",
    "Smoothable",
    "Task",
    "check_label_smoothing",
    "classification",
    "smoothed",
]


@dataclass(frozen=True)
class Metric:
    """A number by which networks are compared.

    Attributes:
        name: As objectives in a recipe call it.
        direction: Whether more or less of it is better.
        unit: Of the number; ``"fraction"`` is in 0..1.
    """

    name: str
    direction: Literal["maximize", "minimize"]
    unit: str


class Task(Protocol):
    """What trainer, evaluator, export and report know of the thing that is learned.

    A task travels to worker processes, so it must pickle: make it a frozen dataclass of a module.
    Outputs are float (N, `outputs`), or (N, `outputs`, h, w) where `meaning` is of pixels, on any
    device; targets are those of the data, int64 (N,) for classes, float32 (N, K) for values, uint8
    (N, H, W) for masks, on the same device.
    """

    @property
    def name(self) -> str:
        """As a bundle's card calls it."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """At least one; the first is the one that training reports."""

    @property
    def outputs(self) -> int:
        """Length of a network's output vector, for an image or for each of its pixels."""

    @property
    def meaning(self) -> OutputMeaning:
        """What the numbers of that vector stand for, and whether there is one for each pixel."""

    @property
    def preprocessing(self) -> Preprocessing:
        """From stored pixels to a network's input, at the size of the data's own images."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What training minimises: a scalar, the mean over the batch."""

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """How far a network is from a larger one: a scalar without gradient to the teacher."""

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """What the metrics are computed from: by a name, float (N, ...), one entry an image."""

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The metrics by name, scalars.

        Args:
            means: Of the statistics over all images of a split, each without its first dimension;
                float64. The result is differentiable in them, for that gives its standard error.
        """


@runtime_checkable
class Smoothable(Protocol):
    """A task whose targets can be smoothed: one of classes."""

    def smoothed(self, label_smoothing: float) -> Task:
        """The same task with this share of the target probability spread over all classes."""


def smoothed(task: Task, label_smoothing: float | None) -> Task:
    """The task with other label smoothing; the same if that is None.

    Raises:
        ConfigError: The task has no classes whose labels could be smoothed.
    """
    if label_smoothing is None:
        return task
    if not isinstance(task, Smoothable):
        raise ConfigError(
            f"train.label_smoothing is {label_smoothing}, but task {task.name} has no labels to "
            "smooth; leave it out"
        )
    return task.smoothed(label_smoothing)


def check_label_smoothing(label_smoothing: float) -> None:
    """Raise where it is no share that leaves something to the label."""
    if not 0 <= label_smoothing < 1:
        raise ConfigError(f"label_smoothing is {label_smoothing}; expected at least 0 and below 1")


@dataclass(frozen=True)
class Classification:
    """Each image belongs to exactly one class.

    Attributes:
        class_names: In the order of the outputs.
        preprocessing: At the size of the data's own images.
        label_smoothing: Share of the target probability that is spread over all classes, in [0, 1).
    """

    class_names: tuple[str, ...]
    preprocessing: Preprocessing
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        check_label_smoothing(self.label_smoothing)

    @property
    def name(self) -> str:
        """``"classification"``."""
        return "classification"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Top-1 accuracy."""
        return (Metric("accuracy", "maximize", "fraction"),)

    @property
    def outputs(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def meaning(self) -> OutputMeaning:
        """One logit a class."""
        return OutputMeaning("class_scores", self.class_names)

    def smoothed(self, label_smoothing: float) -> Classification:
        """The same task with other label smoothing."""
        return replace(self, label_smoothing=label_smoothing)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy with label smoothing, in nats."""
        smoothing = self.label_smoothing
        return functional.cross_entropy(outputs.float(), targets, label_smoothing=smoothing)

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """Kullback-Leibler divergence KL(teacher || network) of the probabilities, in nats."""
        log_q = outputs.float().log_softmax(dim=1)
        log_p = teacher_outputs.detach().float().log_softmax(dim=1)
        return functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """``accuracy``: 1 where the highest logit is the right class's, else 0."""
        return {"accuracy": (outputs.argmax(dim=1) == targets).float()}

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``accuracy``: the share of right answers."""
        return dict(means)


def classification(data: ImageData, label_smoothing: float = 0.1) -> Classification:
    """Tell apart the classes of a data set.

    Args:
        data: Gives the classes, and size and colour statistics of the images.
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
