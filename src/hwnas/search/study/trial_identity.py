"""Identity of a trial: the inputs of its evaluation, of its predicted costs, and the objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

from optuna.trial import FrozenTrial

from hwnas.hashing import content_hash
from hwnas.identity import Identity, may_reuse
from hwnas.predictors import CostSource
from hwnas.search.engine.rungs import Rungs
from hwnas.search.evaluation.evaluate import Evaluator
from hwnas.search.evaluation.scoring import Fidelity
from hwnas.search.objectives.objective import Objective, stored_label
from hwnas.search_spaces import ChoiceSpace

__all__ = ["IDENTITY", "STALE", "TrialIdentity"]

IDENTITY = "identity"
"""User attribute of a trial with the keys of its identity."""
STALE = "stale"
"""User attribute of a trial that must not be used any more, with the reason."""


@dataclass(frozen=True)
class TrialIdentity:
    """Identity of the inputs that a trial's record depends on.

    Attributes:
        evaluation: Identity of space, evaluator (with weights, data and task), fidelity and rungs.
        values: Identity of cost sources and objectives, which with the evaluation determine the
            values of a trial.
    """

    evaluation: Identity
    values: Identity

    @classmethod
    def of(
        cls,
        space: ChoiceSpace,
        objectives: Sequence[Objective],
        evaluator: Evaluator,
        fidelity: Fidelity,
        rungs: Rungs,
        costs: Mapping[str, CostSource],
    ) -> TrialIdentity:
        """Return the identity of the trials of a search."""
        evaluated = Identity.of(
            space=space.fingerprint, evaluator=evaluator.key, fidelity=fidelity.key, rungs=rungs
        )
        limited = [
            [o.label, o.direction, o.limit if o.limits_candidates else None] for o in objectives
        ]
        predictors: dict[str, Any] = {
            f"costs@{stored_label(label)}": _source_key(source) for label, source in costs.items()
        }
        return cls(evaluated, Identity.of({}, objectives=limited, **predictors))

    @property
    def shared(self) -> dict[str, str]:
        """Inputs, by name, that all searches of a shared study must have in common."""
        return {**self.evaluation.inputs, **self.values.inputs}

    def to_json(self) -> dict[str, str]:
        """Return the two keys that a trial records."""
        return {"evaluation": self.evaluation.key, "values": self.values.key}

    def fits(self, trial: FrozenTrial) -> bool:
        """Return whether a trial has this identity, so that this search can use it."""
        stored = self._stored(trial)
        return may_reuse(stored.get("values"), self.values) and self.evaluates(trial)

    def evaluates(self, trial: FrozenTrial) -> bool:
        """Return whether a trial's evaluation has this identity; its costs may differ."""
        return may_reuse(self._stored(trial).get("evaluation"), self.evaluation)

    def difference(self, trial: FrozenTrial) -> str:
        """Return the reason why a trial does not have this identity, in words."""
        if not self.evaluates(trial):
            return "weights, data, task, evaluator or fidelity changed"
        return "objectives, limits or predicted costs changed"

    @staticmethod
    def _stored(trial: FrozenTrial) -> Mapping[str, Any]:
        stored = trial.user_attrs.get(IDENTITY, {})
        return stored if isinstance(stored, Mapping) else {}


def _source_key(source: CostSource) -> str:
    """Return a hash of a cost source: of its ``key`` if it has one, or else of its fields."""
    key = getattr(source, "key", None)
    if key is None and not is_dataclass(source):
        key = [type(source).__qualname__, vars(source)]
    return content_hash(source if key is None else key)
