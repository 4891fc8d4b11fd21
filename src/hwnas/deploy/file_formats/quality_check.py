"""Check of converted files on images with targets, beside that on golden images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.variants.quality import FileEvaluator, Quality
from hwnas.deploy.variants.sweep import outputs_of
from hwnas.errors import ArtifactError, ConfigError

__all__ = ["QualityCheck", "outputs_for"]


@dataclass(frozen=True)
class QualityCheck:
    """Evaluation of converted files, and the loss at which one is refused.

    Attributes:
        evaluator: Evaluator on images with targets.
        model: ONNX file in single precision that losses are against.
        max_loss: Largest loss of the first metric, in the metric's unit.
    """

    evaluator: FileEvaluator
    model: Path
    max_loss: float = math.inf

    def __post_init__(self) -> None:
        if not self.max_loss >= 0:
            raise ConfigError(f"the largest loss is {self.max_loss}; expected 0 or more")

    @cached_property
    def expected(self) -> NDArray[Any]:
        """Outputs of the network in single precision, (N, ...)."""
        return outputs_of(self.model, self.evaluator.inputs())

    def quality(self, session: Session, takes_pixels: bool, what: str) -> Quality:
        """Return the quality of a converted file.

        Args:
            session: The loaded file.
            takes_pixels: Whether it takes pixels instead of preprocessed images.
            what: Description of the file, for the message.

        Raises:
            ArtifactError: The loss is larger than allowed.
            NonFiniteOutput: One of the outputs is not finite.
        """
        outputs = outputs_for(session, self.evaluator, takes_pixels)
        found = self.evaluator.judge(outputs, self.expected)
        if not found.loss <= self.max_loss:  # also true for NaN
            raise ArtifactError(
                f"{what} loses {found.loss:.4g} in {found.metric} on {found.n} {found.split} "
                f"images; at most {self.max_loss:g} is allowed, so nothing was written"
            )
        return found


def outputs_for(
    session: Session, evaluator: FileEvaluator, takes_pixels: bool = False
) -> NDArray[Any]:
    """Return the outputs of a loaded file for all images of an evaluator, (N, ...)."""
    batches: Any = evaluator.pixels() if takes_pixels else evaluator.inputs()
    return np.concatenate([session.run(batch) for batch in batches])
