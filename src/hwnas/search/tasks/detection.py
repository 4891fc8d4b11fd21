"""Object detection: a box and a class for each object of an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hwnas.deploy.boxes import BOX_MAPS, found_boxes
from hwnas.deploy.io import OutputMeaning, Preprocessing, at_size
from hwnas.errors import DataError
from hwnas.registry import Plugin
from hwnas.search.data.boxes import NO_BOX
from hwnas.search.data.image_data import ImageData
from hwnas.search.tasks.box_metrics import BOX_METRICS, box_metrics
from hwnas.search.tasks.delta_method import MetricValue
from hwnas.search.tasks.task import Metric, check_metrics

__all__ = ["PLUGINS", "Detection", "detection"]

_RADIUS = 1.5
"""Largest distance, in cells and in each direction, of an object's cells from its centre."""
_BOX_WEIGHT = 2.0  # of the loss of boxes, against that of scores
_FOCUS = 2.0  # beta of the quality focal loss
_LARGEST_LOG_SIDE = 10.0


@dataclass(frozen=True)
class Detection:
    """Detection task: any number of objects in an image, each with a class and a box.

    Networks have no anchors: outputs are maps (N, classes + 4, h, w), decoded to boxes by
    `hwnas.deploy.boxes.found_boxes`. In training, an object is learned by the cells whose centre is
    in its box and at most 1.5 cells from the centre of the box in each direction (centre sampling;
    FCOS, Tian et al., ICCV 2019, and its later version), and by the cell that the centre lies in. A
    cell that several objects would use learns the smallest one.

    Attributes:
        class_names: Class names in the order of the outputs.
        preprocessing: Preprocessing at the size of the data's own images.
        metric_names: Names of the metrics, of ``"map"``, ``"map_50"`` and ``"map_75"``; training
            reports the first.

    Raises:
        ConfigError: A metric is unknown, or named twice.
    """

    class_names: tuple[str, ...]
    preprocessing: Preprocessing
    metric_names: tuple[str, ...] = ("map",)

    def __post_init__(self) -> None:
        check_metrics(self.metric_names, BOX_METRICS)

    @property
    def name(self) -> str:
        """Name of the task, ``"detection"``."""
        return "detection"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Mean average precisions, all fractions to maximise."""
        return tuple(Metric(name, "maximize", "fraction") for name in self.metric_names)

    @property
    def outputs(self) -> int:
        """Number of output maps: one for each class, and four for the box."""
        return len(self.class_names) + BOX_MAPS

    @property
    def meaning(self) -> OutputMeaning:
        """Meaning of the outputs: scores and a box for each cell."""
        return OutputMeaning("boxes", self.class_names)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of scores plus twice the loss of boxes.

        Scores have the quality focal loss: a cross-entropy whose target is the intersection over
        union (IoU) of the predicted box with the object's, summed over all cells and classes and
        divided by the number of cells with an object (Li et al., "Generalized Focal Loss", NeurIPS
        2020, equation 2). Boxes have 1 - generalised IoU, the mean over cells with an object
        (Rezatofighi et al., CVPR 2019).
        """
        logits, offsets = self._parted(outputs)
        cells, wanted = _cells_of(targets, outputs.shape[2:])
        image, row, column = cells
        found = _boxes_at(offsets[image, :, row, column], row, column)
        iou, generalised = _overlaps(found, wanted[:, :4])
        quality = torch.zeros_like(logits)
        quality[image, wanted[:, 4].long(), row, column] = iou.detach()
        count = max(1, len(image))
        box_loss = (1 - generalised).sum() / count
        return _focal(logits, quality).sum() / count + _BOX_WEIGHT * box_loss

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """Return the loss against a teacher's scores and boxes.

        Scores have the quality focal loss against the teacher's scores, interpolated to the size
        of the outputs. Differences of the four numbers of a box are weighted by the teacher's
        highest score there; if the teacher has another number of cells, boxes are not compared.
        Both are divided by the sum of these weights.
        """
        logits, offsets = self._parted(outputs)
        theirs, their_offsets = self._parted(teacher_outputs.detach())
        scores = at_size(theirs, outputs.shape[2:]).sigmoid()
        weight = scores.amax(dim=1)
        loss = _focal(logits, scores).sum()
        if offsets.shape == their_offsets.shape:
            far = (offsets - their_offsets).abs().mean(dim=1)
            loss = loss + _BOX_WEIGHT * (far * weight).sum()
        return loss / weight.sum().clamp(min=1)

    def _parted(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        numbers, classes = outputs.float(), len(self.class_names)
        return numbers[:, :classes], numbers[:, classes:]

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return nothing, since all metrics depend on all images together."""
        return {}

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return nothing, see `statistics`."""
        return {}

    @property
    def rank_metrics(self) -> tuple[str, ...]:
        """Names of all metrics, each of which depends on the order of all boxes of a split."""
        return self.metric_names

    def ranked(self, outputs: Tensor) -> Tensor:
        """Return the boxes (N, M, 6) of `hwnas.deploy.boxes.found_boxes`."""
        return torch.from_numpy(found_boxes(outputs.detach().float().cpu().numpy()))

    def rank_values(self, outputs: Tensor, targets: Tensor) -> dict[str, MetricValue]:
        """Return the mean average precisions of boxes (N, M, 6); see `box_metrics`."""
        found, true = outputs.numpy(), targets.cpu().numpy()
        return box_metrics(self.metric_names, found, true, len(self.class_names))


def _cells_of(
    targets: Tensor, size: torch.Size | Sequence[int]
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Return the cells that learn an object.

    Args:
        targets: Boxes (N, M, 5); see `hwnas.search.data.boxes.Boxes`.
        size: Height and width of the maps, in cells.

    Returns:
        Image, row and column of each of P cells; and its object, (P, 5): left, top, right and
        bottom in cells, and the class.
    """
    height, width = size
    scale = targets.new_tensor([width, height, width, height, 1])
    boxes = targets * scale
    x = (torch.arange(width, device=targets.device) + 0.5).view(1, 1, 1, -1)
    y = (torch.arange(height, device=targets.device) + 0.5).view(1, 1, -1, 1)
    left, top, right, bottom, kind = (each[..., None, None] for each in boxes.unbind(dim=2))
    centre_x, centre_y = (left + right) / 2, (top + bottom) / 2
    inside = (left < x) & (x < right) & (top < y) & (y < bottom)
    near = ((x - centre_x).abs() < _RADIUS) & ((y - centre_y).abs() < _RADIUS)
    own = (centre_x.floor() == x.floor()) & (centre_y.floor() == y.floor())
    learned = ((inside & near) | own) & (kind != NO_BOX)
    area = ((right - left) * (bottom - top)).expand_as(learned)
    smallest, index = area.masked_fill(~learned, torch.inf).min(dim=1)
    image, row, column = torch.nonzero(smallest < torch.inf, as_tuple=True)
    return (image, row, column), boxes[image, index[image, row, column]]


def _boxes_at(offsets: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return left, top, right and bottom, in cells, of boxes (P, 4) as outputs at some cells."""
    x, y, u, v = offsets.unbind(dim=1)
    centre_x, centre_y = column + 0.5 + x, row + 0.5 + y
    half_x, half_y = (each.clamp(max=_LARGEST_LOG_SIDE).exp() / 2 for each in (u, v))
    sides = (centre_x - half_x, centre_y - half_y, centre_x + half_x, centre_y + half_y)
    return torch.stack(sides, dim=1)


def _overlaps(ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the intersection over union, and the generalised one, of pairs of boxes (P, 4)."""
    shared = _area(
        torch.maximum(ours[:, :2], theirs[:, :2]), torch.minimum(ours[:, 2:], theirs[:, 2:])
    )
    union = _area(ours[:, :2], ours[:, 2:]) + _area(theirs[:, :2], theirs[:, 2:]) - shared
    around = _area(
        torch.minimum(ours[:, :2], theirs[:, :2]), torch.maximum(ours[:, 2:], theirs[:, 2:])
    )
    iou = shared / union.clamp(min=1e-9)
    return iou, iou - (around - union) / around.clamp(min=1e-9)


def _area(low: Tensor, high: Tensor) -> Tensor:
    """Return the areas of boxes by two corners (P, 2); 0 if the second is not beyond the first."""
    return (high - low).clamp(min=0).prod(dim=1)


def _focal(logits: Tensor, quality: Tensor) -> Tensor:
    """Return the quality focal loss of each logit against a target in [0, 1], in nats."""
    loss = functional.binary_cross_entropy_with_logits(logits, quality, reduction="none")
    return loss * (quality - logits.sigmoid()).abs() ** _FOCUS


def detection(data: ImageData, metrics: Sequence[str] = ("map",)) -> Detection:
    """Return the detection task of a data set.

    Args:
        data: Data set that gives the classes, and size and colour statistics of the images.
        metrics: Names of the metrics; see `Detection`.

    Raises:
        ConfigError: The metrics cannot be used.
        DataError: The targets of the data are not boxes.
    """
    if data.kind != "boxes" or data.class_names is None:
        raise DataError(
            f"task detection needs boxes, floats (N, M, 5), but the targets are {data.kind}; let "
            "data.source give boxes, or name another task"
        )
    return Detection(data.class_names, data.preprocessing, tuple(metrics))


PLUGINS = (
    Plugin(
        "task",
        "detection",
        detection,
        "A box and a class for each object; metrics mAP, and mAP at an IoU of .5 and .75",
    ),
)
