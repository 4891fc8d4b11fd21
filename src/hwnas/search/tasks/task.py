"""Learning tasks, which define the loss and the metrics from a network's outputs and targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self, runtime_checkable

from torch import Tensor

from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.search.tasks.delta_method import MetricValue

__all__ = [
    "JointTask",
    "LabelTask",
    "Metric",
    "RankTask",
    "Smoothable",
    "Task",
    "UpscalingTask",
    "check_label_smoothing",
    "check_metrics",
    "smoothed",
]


@dataclass(frozen=True)
class Metric:
    """Metric by which networks are compared.

    Attributes:
        name: Name of the metric in the objectives of a recipe.
        direction: Whether higher or lower values are better.
        unit: Unit of the values; ``"fraction"`` is in 0..1.
    """

    name: str
    direction: Literal["maximize", "minimize"]
    unit: str


class Task(Protocol):
    """Interface of a learning task for training, evaluation, export and report.

    A task is sent to worker processes, so it must pickle: make it a frozen dataclass at the top of
    a module. Outputs are float (N, `outputs`), or (N, `outputs`, h, w) if `meaning` is per pixel,
    on any device. Targets are those of the data, on the same device: int64 (N,) for classes,
    float32 (N, K) for values, uint8 (N, H, W) for masks, float32 (N, M, 5) for boxes, uint8 (N, H,
    W, C) for pictures, uint8 (N, T) for tokens.
    """

    @property
    def name(self) -> str:
        """Name of the task, as in a bundle's model card."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics of the task, at least one; training reports the first."""

    @property
    def outputs(self) -> int:
        """Length of a network's output vector, for an image or for each of its pixels."""

    @property
    def meaning(self) -> OutputMeaning:
        """Meaning of the output vector's elements, and whether there is a vector for each pixel."""

    @property
    def preprocessing(self) -> Preprocessing:
        """Conversion of stored pixels to a network's input, at the size of the data's images."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss that training minimises: a scalar, the mean over the batch."""

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """Return the loss against a teacher: a scalar, without gradient to the teacher."""

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the inputs of the metrics by name: float (N, ...), one entry per image."""

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the metrics by name, scalars.

        Args:
            means: Means of the statistics over all images of a split, each without its first
                dimension; float64. The result must be differentiable in them, since its gradient
                gives the standard error.
        """


@runtime_checkable
class RankTask(Protocol):
    """Task with metrics of all outputs of a split together, such as an average precision."""

    @property
    def rank_metrics(self) -> tuple[str, ...]:
        """Names of these metrics; they are also in `Task.metrics`."""

    def ranked(self, outputs: Tensor) -> Tensor:
        """Return what these metrics need of a batch's outputs: (N, ...), on the CPU."""

    def rank_values(self, outputs: Tensor, targets: Tensor) -> dict[str, MetricValue]:
        """Return these metrics by name, for what `ranked` returned, and targets, of all images."""


@runtime_checkable
class UpscalingTask(Protocol):
    """Task whose outputs are maps with more pixels than the images."""

    @property
    def upscale(self) -> int:
        """Number of times that the maps are as large as the images, in each direction."""


@runtime_checkable
class JointTask(Protocol):
    """Task whose outputs are those of several tasks side by side."""

    @property
    def task_outputs(self) -> Mapping[str, int]:
        """Number of outputs of each task by its name, in the order of the outputs."""


@runtime_checkable
class Smoothable(Protocol):
    """Task with label smoothing, which needs targets that are classes."""

    def smoothed(self, label_smoothing: float) -> Task:
        """Return the same task with this share of target probability spread over all classes."""


def smoothed(task: Task, label_smoothing: float | None) -> Task:
    """Return the task with another label smoothing; the task itself if the smoothing is None.

    Raises:
        ConfigError: The task does not support label smoothing.
    """
    if label_smoothing is None:
        return task
    if not isinstance(task, Smoothable):
        raise ConfigError(
            f"train.label_smoothing is {label_smoothing}, but task {task.name} has no labels to "
            "smooth; leave it out"
        )
    return task.smoothed(label_smoothing)


def check_metrics(names: Sequence[str], known: Collection[str]) -> None:
    """Raise if ``task.metrics`` is empty, or has an unknown name or one twice."""
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown task.metrics {name!r}; {closest(name, known)}")
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"task.metrics is {list(names)}; expected one or more names, none twice")


def check_label_smoothing(label_smoothing: float) -> None:
    """Raise if label smoothing is not in [0, 1)."""
    if not 0 <= label_smoothing < 1:
        raise ConfigError(f"label_smoothing is {label_smoothing}; expected at least 0 and below 1")


@dataclass(frozen=True)
class LabelTask:
    """Base of tasks whose targets are classes.

    Attributes:
        class_names: Class names in the order of the outputs.
        preprocessing: Preprocessing at the size of the data's own images.
        label_smoothing: Share of the target probability that is spread over all classes, in [0, 1).
    """

    class_names: tuple[str, ...]
    preprocessing: Preprocessing
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_label_smoothing(self.label_smoothing)

    @property
    def outputs(self) -> int:
        """Number of outputs, or of output maps: one for each class."""
        return len(self.class_names)

    def smoothed(self, label_smoothing: float) -> Self:
        """Return the same task with another label smoothing."""
        return replace(self, label_smoothing=label_smoothing)
