"""Semantic segmentation: each pixel of an image belongs to one class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from hwnas.deploy.io import OutputMeaning, Preprocessing, at_size
from hwnas.errors import DataError
from hwnas.search.data import ImageData
from hwnas.search.masks import VOID
from hwnas.search.task import Metric, check_label_smoothing

__all__ = ["Segmentation", "segmentation"]


@dataclass(frozen=True)
class Segmentation:
    """Each pixel belongs to exactly one class, or to none that counts.

    Outputs are logits (N, classes, h, w); where h and w are not those of the masks, the logits are
    interpolated to them (bilinearly), never the masks to the logits, so that networks of all
    resolutions are scored on the same pixels. Pixels whose mask is `VOID`, 255, are neither learned
    from nor scored.

    Attributes:
        class_names: In the order of the outputs.
        preprocessing: At the size of the data's own images.
        label_smoothing: Share of the target probability that is spread over all classes, in [0, 1).
    """

    class_names: tuple[str, ...]
    preprocessing: Preprocessing
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_label_smoothing(self.label_smoothing)

    @property
    def name(self) -> str:
        """``"segmentation"``."""
        return "segmentation"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Mean intersection over union, and the share of right pixels."""
        return (
            Metric("mean_iou", "maximize", "fraction"),
            Metric("pixel_accuracy", "maximize", "fraction"),
        )

    @property
    def outputs(self) -> int:
        """The number of classes, which is that of output maps."""
        return len(self.class_names)

    @property
    def meaning(self) -> OutputMeaning:
        """One logit a class for each pixel."""
        return OutputMeaning("pixel_class_scores", self.class_names)

    def smoothed(self, label_smoothing: float) -> Segmentation:
        """The same task with other label smoothing."""
        return replace(self, label_smoothing=label_smoothing)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy with label smoothing, in nats: the mean over all pixels of a class."""
        total = functional.cross_entropy(
            at_size(outputs.float(), targets.shape[1:]),
            targets.long(),
            ignore_index=VOID,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
        # A batch may have no such pixel; PyTorch's own mean would not be a number then.
        return total / (targets != VOID).sum().clamp(min=1)

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """KL(teacher || network) of the probabilities of each pixel, in nats, in the mean."""
        teacher = teacher_outputs.detach().float()
        log_q = at_size(outputs.float(), teacher.shape[2:]).log_softmax(dim=1)
        log_p = teacher.log_softmax(dim=1)
        total = functional.kl_div(log_q, log_p, reduction="sum", log_target=True)
        return total / log_q[:, 0].numel()

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Pixels of each image that were counted.

        Returns:
            ``intersection`` and ``union`` of the true and the predicted pixels of each class, (N,
            classes), and ``labelled``, (N,), the pixels that have a class.
        """
        table = self._confusion(at_size(outputs.float(), targets.shape[1:]).argmax(dim=1), targets)
        intersection = table.diagonal(dim1=1, dim2=2)
        union = table.sum(dim=1) + table.sum(dim=2) - intersection
        return {"intersection": intersection, "union": union, "labelled": table.sum(dim=(1, 2))}

    def _confusion(self, predicted: Tensor, targets: Tensor) -> Tensor:
        """Pixels (N, true class, predicted class) of masks (N, H, W)."""
        n, classes = len(targets), self.outputs
        image = torch.arange(n, device=targets.device).view(-1, 1, 1).expand(targets.shape)
        cells = (image * classes + targets.long()) * classes + predicted
        counts = torch.bincount(cells[targets != VOID], minlength=n * classes**2)
        return counts.view(n, classes, classes).double()

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of the whole split, as is usual: intersections and unions are summed over its images.

        ``mean_iou`` is the mean over classes of intersection / union (Everingham et al., "The
        Pascal Visual Object Classes Challenge: a Retrospective", IJCV 2015; "mean IU" of Long et
        al., "Fully Convolutional Networks for Semantic Segmentation", CVPR 2015, section 5): not
        the mean over images of each image's own, which small objects would govern. A class that no
        image has and no pixel was given is left out. ``pixel_accuracy`` is the share of pixels
        that were given their class.
        """
        intersection, union = means["intersection"], means["union"]
        there = union > 0
        return {
            "mean_iou": (intersection[there] / union[there]).mean(),
            "pixel_accuracy": intersection.sum() / means["labelled"],
        }


def segmentation(data: ImageData, label_smoothing: float = 0.0) -> Segmentation:
    """Tell for each pixel which class it belongs to.

    Args:
        data: Gives the classes, and size and colour statistics of the images.
        label_smoothing: Share of the target probability that is spread over all classes, in [0, 1).

    Raises:
        ConfigError: ``label_smoothing`` is out of range.
        DataError: The targets of the data are no masks.
    """
    if data.kind != "masks" or data.class_names is None:
        raise DataError(
            f"task segmentation needs masks, integers (N, H, W), but the targets are {data.kind} "
            "of whole images; let data.source give masks, or name another task"
        )
    return Segmentation(data.class_names, data.preprocessing, label_smoothing)
