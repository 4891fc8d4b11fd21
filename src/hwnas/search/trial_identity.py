"""What the record of a trial depends on: its evaluation, its predicted costs, the objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial

from hwnas.identity import Identity, may_reuse
from hwnas.predictors import CostSource
from hwnas.search.evaluate import Evaluator, Fidelity
from hwnas.search.objective import Objective
from hwnas.search.rungs import Rungs
from hwnas.search_spaces import ChoiceSpace

__all__ = ["IDENTITY", "STALE", "TrialIdentity"]

IDENTITY = "identity"
"""The user attribute of a trial with the keys of what it depends on."""
STALE = "stale"
"""The user attribute of a trial that counts for nothing, with the reason."""


@dataclass(frozen=True)
class TrialIdentity:
    """What a trial's record depends on.

    Attributes:
        evaluation: Space, evaluator (with weights, data and task) and fidelity.
        values: Cost sources and objectives, by which an evaluation becomes a trial's values.
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
        """Return the identity of the trials that a search makes."""
        evaluated = Identity.of(
            space=space.fingerprint, evaluator=evaluator.key, fidelity=fidelity.key, rungs=rungs
        )
        limited = [[o.label, o.direction, o.limit] for o in objectives]
        predictors: dict[str, Any] = {f"costs@{target}": each for target, each in costs.items()}
        return cls(evaluated, Identity.of({}, objectives=limited, **predictors))

    @property
    def shared(self) -> dict[str, str]:
        """What searches that share a study must agree on, by name."""
        return {**self.evaluation.inputs, **self.values.inputs}

    def to_json(self) -> dict[str, str]:
        """Return the keys under which a trial records it."""
        return {"evaluation": self.evaluation.key, "values": self.values.key}

    def fits(self, trial: FrozenTrial) -> bool:
        """Return whether a trial counts."""
        stored = self._stored(trial)
        return may_reuse(stored.get("values"), self.values) and self.evaluates(trial)

    def evaluates(self, trial: FrozenTrial) -> bool:
        """Return whether the evaluation of a trial, if not its costs, is that of this search."""
        return may_reuse(self._stored(trial).get("evaluation"), self.evaluation)

    def difference(self, trial: FrozenTrial) -> str:
        """Return why a trial does not count, in words."""
        if not self.evaluates(trial):
            return "weights, data, task, evaluator or fidelity changed"
        return "objectives, limits or predicted costs changed"

    @staticmethod
    def _stored(trial: FrozenTrial) -> Mapping[str, Any]:
        stored = trial.user_attrs.get(IDENTITY, {})
        return stored if isinstance(stored, Mapping) else {}
