"""Detection: what networks learn from boxes, and how good their boxes are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hwnas.deploy.boxes import found_boxes
from hwnas.errors import ConfigError
from hwnas.search.data.boxes import NO_BOX, padded_boxes
from hwnas.search.tasks.box_metrics import box_metrics
from hwnas.search.tasks.detection import Detection

TASK = Detection(("cat", "ball"), None, ("map", "map_50", "map_75"))  # type: ignore[arg-type]
CELLS = 8


def random_boxes(seed: int, images: int = 12, most: int = 3) -> Tensor:
    """Return boxes of 1 to 5 cells, none of which has its centre in the cell of another."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(images):
        cells = rng.permutation(CELLS**2)[: rng.integers(0, most + 1)]
        boxes = []
        for cell in cells:
            y, x = (np.array(divmod(int(cell), CELLS)) + rng.uniform(0.1, 0.9, 2)) / CELLS
            width, height = rng.uniform(1, 5, 2) / CELLS
            left, top = max(0.0, x - width / 2), max(0.0, y - height / 2)
            boxes.append(
                [left, top, min(1.0, x + width / 2), min(1.0, y + height / 2), rng.integers(2)]
            )
        found.append(boxes)
    return torch.from_numpy(padded_boxes(found))


def perfect_outputs(boxes: Tensor) -> Tensor:
    """Return outputs whose only sure cells are those of the boxes' centres."""
    outputs = torch.zeros(len(boxes), len(TASK.class_names) + 4, CELLS, CELLS)
    outputs[:, :2] = -9
    for image, rows in enumerate(boxes):
        for left, top, right, bottom, kind in (rows * CELLS).tolist():
            if kind < 0:
                continue
            x, y = (left + right) / 2, (top + bottom) / 2
            row, column = min(CELLS - 1, int(y)), min(CELLS - 1, int(x))
            outputs[image, int(kind / CELLS), row, column] = 9
            outputs[image, 2:, row, column] = torch.tensor(
                [x - column - 0.5, y - row - 0.5, np.log(right - left), np.log(bottom - top)]
            )
    return outputs


@given(seed=st.integers(0, 999))
def test_perfect_outputs_are_decoded_to_the_boxes(seed: int) -> None:
    boxes = random_boxes(seed, most=1)
    found = found_boxes(perfect_outputs(boxes).numpy())
    for image, (box,) in enumerate(boxes.tolist()):
        sure = found[image][found[image, :, 5] > 0.5]
        assert len(sure) == (box[4] != NO_BOX)
        if len(sure):
            assert sure[0, :5].tolist() == pytest.approx(box, abs=1e-5)


def test_loss_of_one_cell_is_not_halved() -> None:
    """The loss is a mean over cells with an object; two equal images have twice as many."""
    torch.manual_seed(0)
    outputs = torch.randn(1, 6, 2, 2)
    box = torch.tensor([[[0.05, 0.05, 0.45, 0.45, 1.0]]])
    alone = TASK.loss(outputs, box)
    twice = TASK.loss(outputs.repeat(2, 1, 1, 1), box.repeat(2, 1, 1))
    torch.testing.assert_close(alone, twice)


def test_perfect_outputs_have_a_map_of_one_and_a_smaller_loss() -> None:
    boxes = random_boxes(0, most=1)
    outputs = perfect_outputs(boxes)
    values = TASK.rank_values(TASK.ranked(outputs), boxes)
    assert {name: each.value for name, each in values.items()} == pytest.approx(
        {"map": 1.0, "map_50": 1.0, "map_75": 1.0}
    )
    assert TASK.loss(outputs, boxes) < TASK.loss(torch.zeros_like(outputs), boxes)


def test_overlapping_boxes_of_a_class_are_suppressed_but_not_of_another() -> None:
    outputs = torch.full((1, 6, 4, 4), -9.0)
    outputs[0, 2:] = 0
    outputs[0, 4:] = 2.0  # boxes of seven cells: neighbours overlap by more than .6
    outputs[0, 0, 1, 1], outputs[0, 0, 1, 2] = 5.0, 4.0
    outputs[0, 1, 1, 2] = 3.0
    (found,) = found_boxes(outputs.numpy())
    sure = found[found[:, 5] > 0.5]
    assert sure[:, 4].tolist() == [0, 1]
    assert sure[0, 5] == pytest.approx(1 / (1 + np.exp(-5)), abs=1e-4)


@given(seed=st.integers(0, 999), scale=st.sampled_from([0.1, 3.0, 100.0]))
def test_boxes_of_any_outputs_are_inside_the_image_and_ordered(seed: int, scale: float) -> None:
    outputs = scale * torch.randn(2, 7, 5, 3, generator=torch.Generator().manual_seed(seed))
    found = found_boxes(outputs.numpy(), most=20)
    assert found.shape == (2, 20, 6)
    assert np.isfinite(found).all()
    assert (found[..., :4] >= 0).all()
    assert (found[..., :4] <= 1).all()
    assert (found[..., 0] <= found[..., 2]).all()
    assert (np.diff(found[..., 5], axis=1) <= 1e-6).all()


def test_the_smallest_object_wins_a_cell() -> None:
    inner, outer = [0.4, 0.4, 0.6, 0.6, 0], [0.0, 0.0, 1.0, 1.0, 1]
    boxes = torch.from_numpy(padded_boxes([[outer, inner]]))
    outputs = torch.zeros(1, 6, 5, 5, requires_grad=True)
    TASK.loss(outputs, boxes).backward()
    assert outputs.grad is not None
    wants_more = outputs.grad[0, :2, 2, 2] < 0
    assert wants_more.tolist() == [True, False]


def test_a_box_smaller_than_a_cell_is_learned() -> None:
    boxes = torch.from_numpy(padded_boxes([[[0.01, 0.01, 0.02, 0.02, 0]]]))
    outputs = torch.zeros(1, 6, 4, 4, requires_grad=True)
    TASK.loss(outputs, boxes).backward()
    assert outputs.grad is not None
    assert outputs.grad[0, 2:, 0, 0].abs().sum() > 0


def test_images_without_objects_lower_all_scores() -> None:
    boxes = torch.from_numpy(padded_boxes([[], []]))
    outputs = torch.zeros(2, 6, 4, 4, requires_grad=True)
    loss = TASK.loss(outputs, boxes)
    loss.backward()
    assert outputs.grad is not None
    assert torch.isfinite(loss)
    assert (outputs.grad[:, :2] > 0).all()
    assert (outputs.grad[:, 2:] == 0).all()


@pytest.mark.parametrize("maps", [(4, 6), (7, 3), (8, 8)])
def test_teacher_may_have_another_number_of_cells(maps: tuple[int, int]) -> None:
    student = torch.randn(2, 6, 4, 6, requires_grad=True)
    TASK.distillation_loss(student, torch.randn(2, 6, *maps)).backward()
    assert student.grad is not None
    assert torch.isfinite(student.grad).all()


def test_metrics_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown task\.metrics 'mAP'"):
        Detection(("cat",), None, ("mAP",))  # type: ignore[arg-type]


def noisy(boxes: Tensor, seed: int) -> np.ndarray:
    """Return what a middling detector finds: moved, missed and invented boxes."""
    rng = np.random.default_rng(seed)
    found = np.zeros((len(boxes), 10, 6), np.float32)
    for image, rows in enumerate(boxes.numpy()):
        kept = [row for row in rows if row[4] != NO_BOX and rng.random() < 0.8]
        invented = random_boxes(int(rng.integers(1e6)), 1)[0].numpy()
        kept += [row for row in invented if row[4] != NO_BOX]
        for place, row in zip(found[image], kept, strict=False):
            place[:4] = row[:4] + rng.normal(0, 0.03, 4)
            place[4:] = row[4], rng.uniform(0.1, 0.9)
    return found


def test_influences_are_those_of_the_jackknife() -> None:
    boxes = random_boxes(1, images=60)
    found = noisy(boxes, 1)
    whole = box_metrics(["map"], found, boxes.numpy(), 2)["map"]
    rows = np.arange(60)
    without = [
        box_metrics(["map"], found[rows != row], boxes.numpy()[rows != row], 2)["map"].value
        for row in rows
    ]
    pseudo = (60 - 1) * (np.mean(without) - np.array(without))
    ours = whole.influence.numpy()
    assert np.corrcoef(pseudo, ours)[0, 1] > 0.98
    assert ours.std() == pytest.approx(pseudo.std(), rel=0.1)


def test_a_class_without_objects_is_left_out() -> None:
    boxes = torch.from_numpy(padded_boxes([[[0, 0, 0.5, 0.5, 0]], [[0, 0, 1, 1, 0]]]))
    found = np.zeros((2, 1, 6), np.float32)
    found[:, 0, :4] = boxes[:, 0, :4]
    found[:, 0, 5] = 0.9
    assert box_metrics(["map"], found, boxes.numpy(), 2)["map"].value == pytest.approx(1)
