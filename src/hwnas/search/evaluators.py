"""Evaluators by their names in a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hwnas.search.evaluate import Evaluator, SupernetEvaluator, TrainEvaluator
from hwnas.search.lineage import GrowEvaluator

__all__ = ["EVALUATORS"]

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
