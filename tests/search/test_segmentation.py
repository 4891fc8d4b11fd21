from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import jaccard_score
from torch import Tensor

from hwnas.errors import ConfigError, DataError
from hwnas.search.data.image_data import DataConfig
from hwnas.search.data.loading import load_data
from hwnas.search.data.masks import VOID
from hwnas.search.tasks.delta_method import function_of_means
from hwnas.search.tasks.segmentation import Segmentation, segmentation
from hwnas.search.tasks.task import smoothed

TASK = Segmentation(("sky", "sea", "sand"), preprocessing=None)  # type: ignore[arg-type]


def sure(predicted: Tensor) -> Tensor:
    """Return confident outputs for the given classes."""
    return 9 * torch.eye(3)[predicted].permute(0, 3, 1, 2)


def metrics(predicted: Tensor, targets: Tensor) -> dict[str, float]:
    found = function_of_means(TASK.metric_values, TASK.statistics(sure(predicted), targets))
    return {name: metric.value for name, metric in found.items()}


def test_mean_iou_sums_intersections_and_unions_over_images() -> None:
    """By hand: sky 1 of 5, sea 1 of 5. The mean of the two images' own values would be 1/4."""
    targets = torch.tensor([[[0, 0, 1]], [[0, 0, 0]]], dtype=torch.uint8)
    predicted = torch.tensor([[[0, 1, 1]], [[1, 1, 1]]])
    found = metrics(predicted, targets)
    assert found["mean_iou"] == pytest.approx((1 / 5 + 1 / 5) / 2)
    assert found["pixel_accuracy"] == pytest.approx(2 / 6)


def test_mean_iou_equals_the_macro_jaccard_score_of_all_pixels() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 3, (20, 5, 6), generator=generator).byte()
    predicted = torch.randint(0, 3, (20, 5, 6), generator=generator)
    expected = jaccard_score(targets.flatten(), predicted.flatten(), average="macro")
    assert metrics(predicted, targets)["mean_iou"] == pytest.approx(expected)


def test_mean_iou_ignores_an_absent_class() -> None:
    targets = torch.tensor([[[0, 0, 1, 1]]], dtype=torch.uint8)
    assert metrics(targets.long(), targets)["mean_iou"] == 1
    assert metrics(torch.tensor([[[0, 0, 1, 2]]]), targets)["mean_iou"] == pytest.approx(0.5)


def test_void_pixels_count_in_neither_metrics_nor_loss() -> None:
    targets = torch.tensor([[[0, VOID, 1, VOID]]], dtype=torch.uint8)
    outputs = sure(torch.tensor([[[0, 2, 1, 2]]])).requires_grad_()
    assert metrics(torch.tensor([[[0, 2, 1, 2]]]), targets) == {"mean_iou": 1, "pixel_accuracy": 1}
    TASK.loss(outputs, targets).backward()
    assert outputs.grad is not None
    assert (outputs.grad.abs().sum(dim=1)[0, 0] > 0).tolist() == [True, False, True, False]


def test_loss_is_zero_for_a_batch_of_void_pixels() -> None:
    loss = TASK.loss(torch.randn(2, 3, 4, 4), torch.full((2, 4, 4), VOID, dtype=torch.uint8))
    assert loss == 0


def test_loss_is_a_mean_over_pixels_in_nats() -> None:
    targets = torch.randint(0, 3, (2, 4, 4)).byte()
    assert TASK.loss(torch.zeros(2, 3, 4, 4), targets).item() == pytest.approx(math.log(3))
    assert smoothed(TASK, 0.3).loss(sure(targets.long()), targets) > TASK.loss(
        sure(targets.long()), targets
    )


def test_coarse_outputs_are_scored_at_the_resolution_of_the_mask() -> None:
    coarse = torch.tensor([[[0, 1], [2, 1]]])
    targets = coarse.repeat_interleave(4, 1).repeat_interleave(4, 2).byte()
    outputs = sure(coarse)
    entries = TASK.statistics(outputs, targets)
    assert entries["labelled"].tolist() == [64]
    assert entries["intersection"].sum() == 64
    assert TASK.loss(outputs, targets) < 0.5
    teacher = sure(targets.long())
    assert TASK.distillation_loss(outputs, teacher) < TASK.distillation_loss(-outputs, teacher)


def test_mean_iou_is_not_dominated_by_small_objects() -> None:
    """The mean of the images' own values would be 0.75; over all pixels it is nearly 1."""
    targets = torch.zeros(2, 10, 10, dtype=torch.uint8)
    targets[0, 0, 0] = 1
    targets[1, :5] = 1
    predicted = targets.long().clone()
    predicted[0, 0, 0] = 0
    assert metrics(predicted, targets)["mean_iou"] > 0.98


def test_segmentation_takes_classes_and_statistics_from_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    data = load_data(DataConfig("painted:strokes"), tmp_path, 0, tmp_path)
    task = segmentation(data, label_smoothing=0.1)
    assert (task.outputs, task.label_smoothing) == (3, 0.1)
    assert task.meaning.kind == "pixel_class_scores"
    assert task.meaning.labels == ("paper", "ink", "chalk")
    assert task.preprocessing.mean == data.channel_mean
    assert [m.name for m in task.metrics] == ["mean_iou", "pixel_accuracy"]
    with pytest.raises(ConfigError, match=r"label_smoothing is 1\.0"):
        segmentation(data, label_smoothing=1.0)


def test_segmentation_refuses_targets_of_whole_images(tmp_path: Path) -> None:
    data = load_data(DataConfig("digits"), tmp_path, 0, tmp_path)
    with pytest.raises(DataError, match=r"needs masks, .* but the targets are classes of"):
        segmentation(data)


def test_standard_errors_equal_those_of_a_bootstrap() -> None:
    rng = np.random.default_rng(0)
    targets = torch.from_numpy(rng.integers(0, 3, (200, 6, 6)).astype(np.uint8))
    right = torch.from_numpy(rng.random((200, 6, 6)) < rng.beta(4, 2, (200, 1, 1)))
    predicted = torch.where(
        right, targets.long(), torch.from_numpy(rng.integers(0, 3, (200, 6, 6)))
    )
    entries = TASK.statistics(sure(predicted), targets)
    found = function_of_means(TASK.metric_values, entries)
    for name, metric in found.items():
        drawn = []
        for _ in range(500):
            rows = torch.from_numpy(rng.integers(0, 200, 200))
            means = {key: values[rows].mean(0) for key, values in entries.items()}
            drawn.append(TASK.metric_values(means)[name].item())
        assert metric.standard_error == pytest.approx(np.std(drawn), rel=0.15)
