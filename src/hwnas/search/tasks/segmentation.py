"""Semantic segmentation: each pixel of an image belongs to one class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hwnas.deploy.io import OutputMeaning, at_size
from hwnas.errors import DataError
from hwnas.registry import Plugin
from hwnas.search.data.image_data import ImageData
from hwnas.search.data.masks import VOID
from hwnas.search.tasks.task import LabelTask, Metric

__all__ = ["PLUGINS", "Segmentation", "segmentation"]


@dataclass(frozen=True)
class Segmentation(LabelTask):
    """Semantic segmentation task: each pixel belongs to exactly one class, or is not labelled.

    Outputs are logits (N, classes, h, w). If h and w differ from the size of the masks, the logits
    are interpolated to that size (bilinearly), never the masks to the size of the logits, so that
    networks of all resolutions are scored on the same pixels. Pixels whose mask is `VOID`, 255,
    count neither in training nor in scoring.
    """

    @property
    def name(self) -> str:
        """Name of the task, ``"segmentation"``."""
        return "segmentation"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Mean intersection over union, and pixel accuracy."""
        return (
            Metric("mean_iou", "maximize", "fraction"),
            Metric("pixel_accuracy", "maximize", "fraction"),
        )

    @property
    def meaning(self) -> OutputMeaning:
        """Meaning of the outputs: one logit per class for each pixel."""
        return OutputMeaning("pixel_class_scores", self.class_names)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy with label smoothing, in nats: the mean over labelled pixels."""
        total = functional.cross_entropy(
            at_size(outputs.float(), targets.shape[1:]),
            targets.long(),
            ignore_index=VOID,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
        # A batch may have no labelled pixel; PyTorch's own mean would then be NaN.
        return total / (targets != VOID).sum().clamp(min=1)

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """Return KL(teacher || network) of class probabilities, in nats: the mean over pixels."""
        teacher = teacher_outputs.detach().float()
        log_q = at_size(outputs.float(), teacher.shape[2:]).log_softmax(dim=1)
        log_p = teacher.log_softmax(dim=1)
        total = functional.kl_div(log_q, log_p, reduction="sum", log_target=True)
        return total / log_q[:, 0].numel()

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Count pixels of each image.

        Returns:
            ``intersection`` and ``union`` of the true and the predicted pixels of each class, (N,
            classes), and ``labelled``, (N,), the number of pixels that have a class.
        """
        table = self._confusion(at_size(outputs.float(), targets.shape[1:]).argmax(dim=1), targets)
        intersection = table.diagonal(dim1=1, dim2=2)
        union = table.sum(dim=1) + table.sum(dim=2) - intersection
        return {"intersection": intersection, "union": union, "labelled": table.sum(dim=(1, 2))}

    def _confusion(self, predicted: Tensor, targets: Tensor) -> Tensor:
        """Return the confusion matrices (N, true class, predicted class) of masks (N, H, W)."""
        n, classes = len(targets), self.outputs
        image = torch.arange(n, device=targets.device).view(-1, 1, 1).expand(targets.shape)
        cells = (image * classes + targets.long()) * classes + predicted
        counts = torch.bincount(cells[targets != VOID], minlength=n * classes**2)
        return counts.view(n, classes, classes).double()

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the metrics of the whole split, from sums over all of its images.

        ``mean_iou`` is the mean over classes of intersection / union (Everingham et al., "The
        Pascal Visual Object Classes Challenge: a Retrospective", IJCV 2015; "mean IU" of Long et
        al., "Fully Convolutional Networks for Semantic Segmentation", CVPR 2015, section 5). As
        usual, intersections and unions are summed over images first; a mean over images of each
        image's own value would be dominated by small objects. A class that occurs neither in the
        masks nor in the predictions is left out. ``pixel_accuracy`` is the share of labelled pixels
        whose predicted class is right.
        """
        intersection, union = means["intersection"], means["union"]
        there = union > 0
        return {
            "mean_iou": (intersection[there] / union[there]).mean(),
            "pixel_accuracy": intersection.sum() / means["labelled"],
        }


def segmentation(data: ImageData, label_smoothing: float = 0.0) -> Segmentation:
    """Return the semantic segmentation task of a data set.

    Args:
        data: Data set that gives the classes, and size and colour statistics of the images.
        label_smoothing: Share of the target probability that is spread over all classes, in [0, 1).

    Raises:
        ConfigError: ``label_smoothing`` is out of range.
        DataError: The targets of the data are not masks.
    """
    if data.kind != "masks" or data.class_names is None:
        raise DataError(
            f"task segmentation needs masks, integers (N, H, W), but the targets are {data.kind} "
            "of whole images; let data.source give masks, or name another task"
        )
    return Segmentation(data.class_names, data.preprocessing, label_smoothing)


PLUGINS = (
    Plugin(
        "task",
        "segmentation",
        segmentation,
        "One class per pixel; metrics mean IoU and pixel accuracy",
    ),
)
