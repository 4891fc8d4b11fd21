"""Batches: division into parts, and the loss of mixed images."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.search.tasks.classification import Classification
from hwnas.search.training.batch import Batch, Mixed


def batch(n: int, mixed: Mixed | None = None) -> Batch:
    images = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1)
    return Batch(images, torch.arange(n) % 10, torch.arange(n) + 100, mixed)


@given(n=st.integers(1, 20), number=st.integers(1, 8))
def test_parts_of_a_batch_keep_the_order_and_their_weights_sum_to_one(n: int, number: int) -> None:
    whole = batch(n, Mixed(torch.arange(n) + 50, 0.25))
    parts = list(whole.parts(number))
    assert sum(part.weight for part in parts) == pytest.approx(1)
    assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
    for part in parts:
        assert part.rows is not None
        assert part.mixed is not None
        assert torch.equal(part.rows - 100, part.images.flatten().long())
        assert torch.equal(part.mixed.targets, part.rows - 50)
        assert part.mixed.share == 0.25


def test_loss_of_mixed_images_weighs_both_targets_by_area(
    digits_task: Classification,
) -> None:
    outputs, others = torch.randn(5, 10), torch.tensor([3, 1, 4, 1, 5])
    mixed = batch(5, Mixed(others, 0.3))
    own = digits_task.loss(outputs, mixed.targets)
    other = digits_task.loss(outputs, others)
    assert mixed.loss(digits_task, outputs) == pytest.approx(0.7 * own + 0.3 * other)
    assert batch(5).loss(digits_task, outputs) == own
