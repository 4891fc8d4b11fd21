"""How far a variant of a network says what the network itself says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.io import OutputMeaning
from hwnas.errors import DataError

__all__ = ["Answers", "Disagreement", "compare_answers"]

_WORST = 5


@dataclass(frozen=True)
class Disagreement:
    """An image that a variant sees differently.

    Attributes:
        image: Its place among those that were compared.
        difference: Largest difference of an output, as a share of the largest output of all images.
        said: What the variant says; empty for values.
        instead_of: What the network itself says; empty for values.
    """

    image: int
    difference: float
    said: str = ""
    instead_of: str = ""


@dataclass(frozen=True)
class Answers:
    """What a variant says beside the network that it was made of, of the same images.

    Attributes:
        images: How many.
        share: Of the answers, those that are the same: of images, or of pixels; None for values.
        by_class: The same among those that the network itself takes for a class.
        mean_difference: Mean difference of an output, as a share of the largest output.
        worst: The images with the largest differences, those with other answers first.
    """

    images: int
    share: float | None
    by_class: Mapping[str, float] = field(hash=False)
    mean_difference: float
    worst: Sequence[Disagreement] = field(hash=False)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the fields of this comparison."""
        return asdict(self)


def compare_answers(
    meaning: OutputMeaning, outputs: NDArray[Any], expected: NDArray[Any]
) -> Answers:
    """Compare outputs.

    Args:
        meaning: What they stand for.
        outputs: Of the variant, (N, K) or (N, K, h, w).
        expected: Of the network itself, of the same shape.

    Raises:
        DataError: The shapes differ, or there are no images.
    """
    if outputs.shape != expected.shape or len(outputs) == 0:
        raise DataError(
            f"outputs of shape {outputs.shape} cannot be compared with those of {expected.shape}"
        )
    largest = max(float(np.abs(expected).max()), 1e-12)
    difference = np.abs(outputs.astype(np.float64) - expected) / largest
    by_image = difference.reshape(len(outputs), -1).max(1)
    if meaning.kind == "values":
        order = np.argsort(-by_image, kind="stable")[:_WORST]
        worst = [Disagreement(int(i), float(by_image[i])) for i in order]
        return Answers(len(outputs), None, {}, float(difference.mean()), worst)
    said, known = outputs.argmax(1), expected.argmax(1)
    same = said == known
    by_class = {
        label: float(same[known == i].mean())
        for i, label in enumerate(meaning.labels)
        if (known == i).any()
    }
    changed = ~same.reshape(len(outputs), -1).all(1)
    order = np.lexsort((-by_image, ~changed))[:_WORST]
    worst = [
        Disagreement(int(i), float(by_image[i]), *_answers(meaning, said[i], known[i]))
        for i in order
    ]
    return Answers(len(outputs), float(same.mean()), by_class, float(difference.mean()), worst)


def _answers(meaning: OutputMeaning, said: Any, known: Any) -> tuple[str, str]:
    """Labels of an image; of an image of pixels those of the first pixel that differs."""
    flat, right = np.ravel(said), np.ravel(known)
    first = int(np.argmax(flat != right))
    return meaning.labels[int(flat[first])], meaning.labels[int(right[first])]
