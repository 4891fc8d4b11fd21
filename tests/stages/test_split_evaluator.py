"""Calibration images for variants of a network, and the comparison of their outputs."""

from __future__ import annotations

import numpy as np
import pytest

from hwnas.deploy.io import Preprocessing
from hwnas.errors import NonFiniteOutput
from hwnas.search.data.split import Split
from hwnas.search.evaluation.converted import calibration_batches
from hwnas.search.tasks.classification import Classification
from hwnas.stages.split_evaluator import SplitEvaluator

PREPROCESSING = Preprocessing(8, 8, 1, (0.5,), (0.5,))


def test_calibration_batches_contain_images_of_all_classes() -> None:
    classes = np.arange(1000) // 100  # sorted, as the split of a user may be
    images = classes.astype(np.uint8)[:, None, None, None].repeat(2, 1).repeat(2, 2)
    plain = Preprocessing(2, 2, 1, (0.0,), (1 / 255,))
    batches = calibration_batches(Split(images, classes, np.arange(1000)), plain, 8)
    assert {len(batch) for batch in batches} == {8}
    assert set(np.unique(np.round(np.concatenate(batches)))) == set(range(10))


@pytest.mark.parametrize("side", ["own", "expected"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_split_evaluator_refuses_outputs_that_are_not_finite(side: str, value: float) -> None:
    images = np.zeros((6, 8, 8, 1), np.uint8)
    split = Split(images, np.array([0, 1, 0, 1, 0, 1]), np.arange(6))
    task = Classification(("a", "b"), PREPROCESSING)
    evaluator = SplitEvaluator(task, split, "test", PREPROCESSING, 2)
    outputs = {
        name: np.eye(2, dtype=np.float32)[[0, 1, 0, 1, 0, 1]] for name in ("own", "expected")
    }
    assert evaluator.judge(outputs["own"], outputs["expected"]).value == 1
    outputs[side][4, 0] = value
    with pytest.raises(NonFiniteOutput, match="for 1 of 6 test images"):
        evaluator.judge(outputs["own"], outputs["expected"])
