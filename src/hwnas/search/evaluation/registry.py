"""Registry of the evaluators that a recipe can name.

To add one, write a module here with a tuple ``PLUGINS``, as in `lineage`; no list names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hwnas.hashing import content_hash
from hwnas.registry import Registry
from hwnas.search.evaluation.evaluate import Evaluator
from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search_spaces import Candidate

__all__ = ["EVALUATORS", "OwnCodeEvaluator"]

EVALUATORS: Registry[Callable[..., Evaluator]] = Registry("evaluator", __package__)
"""Evaluators by name.

A user's own evaluator is named ``"package.module:object"``. The object is a callable that takes any
of the parameters ``space``, ``task``, ``data``, ``train``, ``seed``, ``weights`` and ``folder``. A
supernet is trained only for evaluators that take ``weights``; ``folder`` is a folder of the run in
which the evaluator may keep files. Candidates can have further roles only if the callable also
takes the space of each role, by the role's name, such as ``recipe``."""


@dataclass(frozen=True)
class OwnCodeEvaluator:
    """Evaluator whose scores depend on user code, so that its key includes hashes of that code.

    Attributes:
        evaluator: Evaluator that gives the scores.
        code: Hashes of the user's code, by name.
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
