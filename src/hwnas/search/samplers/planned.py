"""Samplers that propose whole batches, each from the trials that were finished before it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hwnas.errors import ConfigError
from hwnas.search.front import Losses
from hwnas.search.samplers.knowledge import Knowledge
from hwnas.search.threads import one_thread
from hwnas.search_spaces.tabular import Codes

__all__ = ["BATCH", "History", "PlannedSampler", "keys_of"]

BATCH = "hwnas:batch"
"""System attribute of a trial: the number of its batch and its place there."""
_ENQUEUED = "fixed_params"  # Optuna's mark of a trial whose parameters were given
_GROWTH = 30  # a batch has about a thirtieth of the trials before it,
_MOST = 100  # but no more: a plan's memory grows with the square


@dataclass(frozen=True)
class History:
    """The trials before a batch, in the order of their numbers.

    Attributes:
        codes: Of the trials that have values, (n, P).
        values: Of the same, (n, m), in the objectives' units.
        signs: 1 for each objective that is minimised and -1 for the others, (m,).
        limits: Labels of the limits.
        violations: By how much each limit is missed, (n, limits); above 0 is missed.
        seen: All networks that were proposed, with values or without.
    """

    codes: Codes
    values: Losses
    signs: Losses
    limits: tuple[str, ...]
    violations: Losses
    seen: frozenset[bytes]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def losses(self) -> Losses:
        """Of shape (n, m): smaller is better."""
        return self.values * self.signs

    @property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """Which trials keep all limits, (n,)."""
        return np.asarray((self.violations <= 0).all(1))

    def rows(self, index: npt.NDArray[np.int64]) -> History:
        """Only some of the trials; what was proposed stays."""
        return replace(
            self,
            codes=self.codes[index],
            values=self.values[index],
            violations=self.violations[index],
        )

    def first(self, count: int) -> History:
        """Only the first so many trials."""
        return self.rows(np.arange(count))

    def unseen(self, codes: Codes) -> Codes:
        """Those of some networks that were not proposed, each once, in their order."""
        index = {key: i for i, key in enumerate(keys_of(codes)) if key not in self.seen}
        return codes[sorted(index.values())]


@dataclass
class _Batch:
    """A batch that is being proposed; the positions of those that were."""

    number: int
    size: int
    plan: Codes
    taken: set[int] = field(default_factory=set)


class PlannedSampler(BaseSampler):
    """Proposes batches; each is a pure function of the seed and the trials finished before it.

    So a search that was killed and resumed is the same search: a batch that was begun is planned
    again from the same trials, and what is left of it is proposed.

    Args:
        seed: Of everything random.
        batch: How many are evaluated together, at least 1. Planned together are as many, or a
            multiple of it in long searches, where one evaluation tells less.
        knowledge: Of the space; of a plain study it is made from the parameters of its first
            trial, which is random.
    """

    def __init__(self, seed: int = 0, batch: int = 4, knowledge: Knowledge | None = None) -> None:
        if batch < 1:
            raise ConfigError(f"batch is {batch}; expected at least 1")
        self.seed, self.batch, self.knowledge = seed, batch, knowledge
        self._independent = RandomSampler(seed=seed)
        self._common = IntersectionSearchSpace()
        self._codes: dict[int, npt.NDArray[np.int64]] = {}
        self._batch: _Batch | None = None

    @abstractmethod
    def plan(
        self, knowledge: Knowledge, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """Proposals of a batch.

        Args:
            knowledge: Of the space.
            history: The trials before the batch.
            count: How many are wanted.
            rng: A new one for each batch.

        Returns:
            Codes of shape (count, P), or fewer where there are no more networks.
        """

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters, known from the start or from earlier trials."""
        if self.knowledge is not None:
            return self.knowledge.distributions
        return dict(self._common.calculate(study))

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next proposal of the batch; none if there is no network that was not proposed."""
        if not search_space or _ENQUEUED in trial.system_attrs:
            return {}
        if self.knowledge is None:
            self.knowledge = Knowledge.of_distributions(search_space)
        batch = self._current(self.knowledge, study)
        position = next(i for i in count() if i not in batch.taken)
        batch.taken.add(position)
        study._storage.set_trial_system_attr(trial._trial_id, BATCH, [batch.number, position])
        return self.knowledge.parameters(batch.plan[position]) if position < len(batch.plan) else {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        """At random: in the first trial of a plain study, and when there is nothing to propose."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _current(self, knowledge: Knowledge, study: Study) -> _Batch:
        """The batch that the next proposal is of."""
        trials = study.get_trials(deepcopy=False)
        batch = self._batch or self._begun(knowledge, study, trials)
        if batch is None or len(batch.taken) >= batch.size:
            number = 0 if batch is None else batch.number + 1
            batch = self._planned(knowledge, study, trials, number)
        self._batch = batch
        return batch

    def _begun(
        self, knowledge: Knowledge, study: Study, trials: Sequence[FrozenTrial]
    ) -> _Batch | None:
        """The last batch of an earlier process, as far as it got."""
        places = {t.number: t.system_attrs[BATCH] for t in trials if BATCH in t.system_attrs}
        if not places:
            return None
        last = max(number for number, _ in places.values())
        taken = {trial: position for trial, (n, position) in places.items() if n == last}
        before = [t for t in trials if t.number < min(taken)]
        batch = self._planned(knowledge, study, before, last)
        batch.taken.update(taken.values())
        return batch

    def _planned(
        self, knowledge: Knowledge, study: Study, trials: Sequence[FrozenTrial], number: int
    ) -> _Batch:
        before = self._known(knowledge, trials)
        # Trials are evaluated in batches, of which the first may hold others than ours. What began
        # in the batch that this one shares with them is not waited for: after a kill it would be
        # known, and the plan another.
        shared = len(before) % self.batch
        history = self._history(knowledge, study, before, before[: len(before) - shared])
        wanted = min(len(history) // _GROWTH, _MOST)
        size = max(1, wanted // self.batch) * self.batch - shared
        rng = np.random.default_rng([self.seed, number])
        with one_thread():
            return _Batch(number, size, self.plan(knowledge, history, size, rng))

    def _known(self, knowledge: Knowledge, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """The trials whose networks are known."""
        for trial in trials:
            if trial.number not in self._codes and knowledge.options.keys() <= trial.params.keys():
                self._codes[trial.number] = knowledge.code(trial.params)
        return [trial for trial in trials if trial.number in self._codes]

    def _history(
        self,
        knowledge: Knowledge,
        study: Study,
        known: Sequence[FrozenTrial],
        finished: Sequence[FrozenTrial],
    ) -> History:
        scored = [trial for trial in finished if trial.state is TrialState.COMPLETE]
        limits = sorted({label for trial in scored for label in trial.constraints})
        m = len(study.directions)
        return History(
            np.array([self._codes[t.number] for t in scored], np.int64).reshape(
                len(scored), len(knowledge.sizes)
            ),
            np.array([t.values for t in scored], np.float64).reshape(len(scored), m),
            np.array([1.0 if d is StudyDirection.MINIMIZE else -1.0 for d in study.directions]),
            tuple(limits),
            np.array([[t.constraints.get(label, 0.0) for label in limits] for t in scored]).reshape(
                len(scored), len(limits)
            ),
            frozenset(self._codes[t.number].tobytes() for t in known),
        )


def keys_of(codes: Codes) -> list[bytes]:
    """Something hashable for each network."""
    return [row.tobytes() for row in np.ascontiguousarray(codes, dtype=np.int64)]
