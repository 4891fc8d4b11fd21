"""A variant beside its network, on outputs made by hand."""

import numpy as np
import pytest

from hwnas.deploy import OutputMeaning
from hwnas.deploy.prediction_agreement import compare_answers
from hwnas.errors import DataError

ANIMALS = OutputMeaning("class_scores", ("cat", "dog", "fox"))


def test_the_same_outputs_agree_in_everything() -> None:
    outputs = np.eye(3)
    found = compare_answers(ANIMALS, outputs, outputs)
    assert (found.share, found.mean_difference) == (1, 0)
    assert found.by_class == {"cat": 1, "dog": 1, "fox": 1}


def test_other_answers_are_counted_by_class_and_shown_first() -> None:
    expected = np.array([[4.0, 0, 0], [3, 2.9, 0], [0, 2, 0], [0, 4, 0]])
    outputs = expected.copy()
    outputs[1] = [2.9, 3, 0]  # by little, but another answer
    outputs[2] = [0, 3, 0]  # by more, and the same answer
    found = compare_answers(ANIMALS, outputs, expected)
    assert found.share == 0.75
    assert found.by_class == {"cat": 0.5, "dog": 1}  # nothing was a fox
    first, second = found.worst[:2]
    assert (first.image, first.said, first.instead_of) == (1, "dog", "cat")
    assert first.difference == pytest.approx(0.1 / 4)
    assert (second.image, second.said, second.instead_of) == (2, "dog", "dog")


def test_pixels_and_values() -> None:
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


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(DataError, match=r"\(2, 3\)"):
        compare_answers(ANIMALS, np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(DataError, match="equal shapes, with at least one image"):
        compare_answers(ANIMALS, np.zeros((0, 3)), np.zeros((0, 3)))
