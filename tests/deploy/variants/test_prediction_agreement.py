"""Agreement between a variant and its network, for outputs written by hand."""

import numpy as np
import pytest

from hwnas.deploy import OutputMeaning
from hwnas.deploy.variants.prediction_agreement import compare_answers
from hwnas.errors import DataError

ANIMALS = OutputMeaning("class_scores", ("cat", "dog", "fox"))


def test_compare_answers_finds_full_agreement_of_equal_outputs() -> None:
    outputs = np.eye(3)
    found = compare_answers(ANIMALS, outputs, outputs)
    assert (found.share, found.mean_difference) == (1, 0)
    assert found.by_class == {"cat": 1, "dog": 1, "fox": 1}


def test_compare_answers_counts_changed_labels_by_class() -> None:
    expected = np.array([[4.0, 0, 0], [3, 2.9, 0], [0, 2, 0], [0, 4, 0]])
    outputs = expected.copy()
    outputs[1] = [2.9, 3, 0]  # a small difference, but another label
    outputs[2] = [0, 3, 0]  # a larger difference, but the same label
    found = compare_answers(ANIMALS, outputs, expected)
    assert found.share == 0.75
    assert found.by_class == {"cat": 0.5, "dog": 1}  # no image is a fox
    first, second = found.worst[:2]
    assert (first.image, first.said, first.instead_of) == (1, "dog", "cat")
    assert first.difference == pytest.approx(0.1 / 4)
    assert (second.image, second.said, second.instead_of) == (2, "dog", "dog")


def test_compare_answers_compares_pixels_and_values() -> None:
    maps = np.zeros((2, 3, 2, 2))
    maps[:, 0] = 1
    other = maps.copy()
    other[1, 2, 0, 1] = 2
    found = compare_answers(OutputMeaning("pixel_class_scores", ANIMALS.labels), other, maps)
    assert found.share == 7 / 8
    assert (found.worst[0].image, found.worst[0].said, found.worst[0].instead_of) == (
        1, "fox", "cat",
    )  # fmt: skip
    values = compare_answers(
        OutputMeaning("values"), np.array([[1.0], [3]]), np.array([[1.0], [2]])
    )
    assert values.share is None
    assert values.worst[0].image == 1
    assert values.mean_difference == pytest.approx(0.25)


def test_compare_answers_refuses_other_shapes_and_empty_batches() -> None:
    with pytest.raises(DataError, match=r"\(2, 3\)"):
        compare_answers(ANIMALS, np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(DataError, match="equal shapes, with at least one image"):
        compare_answers(ANIMALS, np.zeros((0, 3)), np.zeros((0, 3)))
