"""Agreement between the predictions of a variant and those of the original network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.io import OutputMeaning
from hwnas.errors import DataError

__all__ = ["Disagreement", "PredictionAgreement", "compare_answers"]

_WORST = 5
_WITHOUT_ONE_CLASS = ("label_scores", "values", "boxes", "picture", "task_class_scores")


@dataclass(frozen=True)
class Disagreement:
    """Image on which the outputs of a variant differ from those of the original network.

    Attributes:
        image: Index among the compared images.
        difference: Largest difference of an output, as a share of the largest output over all
            images.
        said: Label predicted by the variant; empty if an image does not have one label.
        instead_of: Label predicted by the original network; likewise.
    """

    image: int
    difference: float
    said: str = ""
    instead_of: str = ""


@dataclass(frozen=True)
class PredictionAgreement:
    """Agreement of a variant with the original network, on the same images.

    Attributes:
        images: Number of images.
        share: Share of images, or of pixels, for which both predict the same class; None if they
            do not have one class.
        by_class: The same share by label, among the images or pixels for which the original network
            predicts that label.
        mean_difference: Mean difference of an output, as a share of the largest output.
        worst: Images with the largest differences; images with different predictions come first.
    """

    images: int
    share: float | None
    by_class: Mapping[str, float] = field(hash=False)
    mean_difference: float
    worst: Sequence[Disagreement] = field(hash=False)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object."""
        return asdict(self)


def compare_answers(
    meaning: OutputMeaning, outputs: NDArray[Any], expected: NDArray[Any]
) -> PredictionAgreement:
    """Compare the outputs of a variant with those of the original network.

    Args:
        meaning: Meaning of the outputs.
        outputs: Outputs of the variant, (N, K) or (N, K, h, w).
        expected: Outputs of the original network, of the same shape.

    Raises:
        DataError: The shapes differ, or there are no images.
    """
    if outputs.shape != expected.shape or len(outputs) == 0:
        raise DataError(
            f"outputs have shape {outputs.shape} and those of the original network "
            f"{expected.shape}; expected equal shapes, with at least one image"
        )
    largest = max(float(np.abs(expected).max()), 1e-12)
    difference = np.abs(outputs.astype(np.float64) - expected) / largest
    by_image = difference.reshape(len(outputs), -1).max(1)
    if meaning.kind in _WITHOUT_ONE_CLASS:
        order = np.argsort(-by_image, kind="stable")[:_WORST]
        worst = [Disagreement(int(i), float(by_image[i])) for i in order]
        return PredictionAgreement(len(outputs), None, {}, float(difference.mean()), worst)
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
    return PredictionAgreement(
        len(outputs), float(same.mean()), by_class, float(difference.mean()), worst
    )


def _answers(meaning: OutputMeaning, said: Any, known: Any) -> tuple[str, str]:
    """Return both labels of an image; for pixel classes, those of the first pixel that differs."""
    flat, right = np.ravel(said), np.ravel(known)
    first = int(np.argmax(flat != right))
    return meaning.labels[int(flat[first])], meaning.labels[int(right[first])]
