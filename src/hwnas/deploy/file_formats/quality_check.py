"""Check of converted files on images with targets, beside that on golden images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hwnas.deploy.runtimes import open_session
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.targets.number_format import onnxruntime_target
from hwnas.deploy.variants.quality import FileEvaluator, Quality
from hwnas.errors import ArtifactError, ConfigError

__all__ = ["QualityCheck"]


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
    def _full(self) -> Any:
        """Metrics of the network in single precision."""
        return self.evaluator.metrics(open_session(self.model, onnxruntime_target(self.model)))

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
        found, *_ = self.evaluator.compare(
            self.evaluator.metrics(session, takes_pixels), self._full
        )
        if not found.loss <= self.max_loss:  # also true for NaN
            raise ArtifactError(
                f"{what} loses {found.loss:.4g} in {found.metric} on {found.n} {found.split} "
                f"images; at most {self.max_loss:g} is allowed, so nothing was written"
            )
        return found
