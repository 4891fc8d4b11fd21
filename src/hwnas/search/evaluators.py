"""Evaluators by their names in a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hwnas.content import content_hash
from hwnas.search.evaluate import Evaluation, Evaluator, Fidelity, SupernetEvaluator, TrainEvaluator
from hwnas.search.lineage import GrowEvaluator
from hwnas.search_spaces import Candidate

__all__ = ["EVALUATORS", "OwnCodeEvaluator"]

EVALUATORS: Mapping[str, Callable[..., Evaluator]] = {
    "grow": GrowEvaluator,
    "supernet": SupernetEvaluator,
    "train": TrainEvaluator,
}
"""Evaluators by name. One's own is ``"package.module:object"``, a callable that takes whichever it
wants of ``space``, ``task``, ``data``, ``train``, ``seed``, ``weights`` and ``folder``; a supernet
is trained only for those that take ``weights``, and a folder of the run is theirs to keep files
in. Candidates have further roles only where it takes the space of each by the role's name, such as
``recipe``."""


@dataclass(frozen=True)
class OwnCodeEvaluator:
    """An evaluator whose scores depend on code that hwnas cannot look into.

    Attributes:
        evaluator: Scores.
        code: Hashes of that code, by name.
    """

    evaluator: Evaluator
    code: Mapping[str, str]

    @property
    def key(self) -> str:
        """Hash of the evaluator's key and of the code."""
        return content_hash(self.evaluator.key, self.code)

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        """Return the scores of one candidate."""
        return self.evaluator.evaluate(candidate, fidelity)
