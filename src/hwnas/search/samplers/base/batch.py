"""Base of the batch samplers, which plan each batch from the trials finished before it."""

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
from hwnas.search.engine.threads import one_thread
from hwnas.search.objectives.front import Losses
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search_spaces.tabular import Codes

__all__ = ["BATCH", "BatchSampler", "History", "keys_of"]

BATCH = "hwnas:batch"
"""System attribute of a trial that holds the number of its batch and its position in it."""
_ENQUEUED = "fixed_params"  # Optuna's system attribute of a trial with given parameters
_GROWTH = 30  # earlier trials per proposal of a batch, in long searches
_MOST = 100  # most proposals of a batch: memory grows with the square of their number


@dataclass(frozen=True)
class History:
    """Trials before a batch, in the order of their numbers.

    Attributes:
        codes: Codes of the complete trials, (n, P).
        values: Objective values of the complete trials, (n, m), in the objectives' units.
        signs: 1 for each minimised objective and -1 for each maximised one, (m,).
        limits: Labels of the limits.
        violations: Violation of each limit by each complete trial, (n, limits); above 0 if the
            limit is missed.
        seen: Keys of all networks that were proposed, evaluated or not.
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
        """Losses of the trials, (n, m); smaller is better."""
        return self.values * self.signs

    @property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """Mask of the trials that meet all limits, (n,)."""
        return np.asarray((self.violations <= 0).all(1))

    def rows(self, index: npt.NDArray[np.int64]) -> History:
        """Return a history of some of the trials, with ``seen`` unchanged."""
        return replace(
            self,
            codes=self.codes[index],
            values=self.values[index],
            violations=self.violations[index],
        )

    def first(self, count: int) -> History:
        """Return a history of the first ``count`` trials, with ``seen`` unchanged."""
        return self.rows(np.arange(count))

    def unseen(self, codes: Codes) -> Codes:
        """Return the networks that were not proposed before, each once, in their order."""
        index = {key: i for i, key in enumerate(keys_of(codes)) if key not in self.seen}
        return codes[sorted(index.values())]


@dataclass
class _Batch:
    """Batch that is being proposed, with the positions already proposed."""

    number: int
    size: int
    plan: Codes
    taken: set[int] = field(default_factory=set)


class BatchSampler(BaseSampler):
    """Base class of batch samplers.

    A batch is a pure function of the seed and the trials finished before it. A search that is
    killed and resumed therefore gives the same result: the sampler plans an unfinished batch again
    from the same trials and proposes the rest of it.

    Args:
        seed: Seed of the random numbers.
        batch: Number of candidates that are evaluated together, at least 1. The sampler plans this
            many proposals together, or a multiple of it in long searches, where a single evaluation
            is less informative.
        features: Description of the space. If None, it is made from the parameters of the study's
            first trial, which is random.
    """

    def __init__(
        self, seed: int = 0, batch: int = 4, features: SpaceFeatures | None = None
    ) -> None:
        if batch < 1:
            raise ConfigError(f"batch is {batch}; expected at least 1")
        self.seed, self.batch, self.features = seed, batch, features
        self._independent = RandomSampler(seed=seed)
        self._common = IntersectionSearchSpace()
        self._codes: dict[int, npt.NDArray[np.int64]] = {}
        self._batch: _Batch | None = None

    @abstractmethod
    def plan(
        self, features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """Plan the proposals of a batch.

        Args:
            features: Description of the space.
            history: Trials before the batch.
            count: Number of proposals.
            rng: Source of randomness, a new one for each batch.

        Returns:
            Codes of shape (count, P), or fewer rows if no more networks are left.
        """

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the distributions of all parameters, from the features or earlier trials."""
        if self.features is not None:
            return self.features.distributions
        return dict(self._common.calculate(study))

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of the batch's next proposal; empty if no network is left."""
        if not search_space or _ENQUEUED in trial.system_attrs:
            return {}
        if self.features is None:
            self.features = SpaceFeatures.of_distributions(search_space)
        batch = self._current(self.features, study)
        position = next(i for i in count() if i not in batch.taken)
        batch.taken.add(position)
        study._storage.set_trial_system_attr(trial._trial_id, BATCH, [batch.number, position])
        return self.features.parameters(batch.plan[position]) if position < len(batch.plan) else {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        """Sample a parameter at random.

        This happens in the first trial of a study without features, and if no network is left.
        """
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _current(self, features: SpaceFeatures, study: Study) -> _Batch:
        """Return the batch of the next proposal, planned if the last one is used up."""
        trials = study.get_trials(deepcopy=False)
        batch = self._batch or self._begun(features, study, trials)
        if batch is None or len(batch.taken) >= batch.size:
            number = 0 if batch is None else batch.number + 1
            batch = self._planned(features, study, trials, number)
        self._batch = batch
        return batch

    def _begun(
        self, features: SpaceFeatures, study: Study, trials: Sequence[FrozenTrial]
    ) -> _Batch | None:
        """Return the last batch of an earlier process, with its proposals marked as taken."""
        places = {t.number: t.system_attrs[BATCH] for t in trials if BATCH in t.system_attrs}
        if not places:
            return None
        last = max(number for number, _ in places.values())
        taken = {trial: position for trial, (n, position) in places.items() if n == last}
        before = [t for t in trials if t.number < min(taken)]
        batch = self._planned(features, study, before, last)
        batch.taken.update(taken.values())
        return batch

    def _planned(
        self, features: SpaceFeatures, study: Study, trials: Sequence[FrozenTrial], number: int
    ) -> _Batch:
        before = self._known(features, trials)
        # Trials are evaluated in batches, and the first batch may hold trials that this sampler did
        # not propose. A plan that starts within an evaluation batch does not use the trials of that
        # batch: after a kill and a resumption they would be finished, and the plan would differ.
        shared = len(before) % self.batch
        history = self._history(features, study, before, before[: len(before) - shared])
        wanted = min(len(history) // _GROWTH, _MOST)
        size = max(1, wanted // self.batch) * self.batch - shared
        rng = np.random.default_rng([self.seed, number])
        with one_thread():
            return _Batch(number, size, self.plan(features, history, size, rng))

    def _known(self, features: SpaceFeatures, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Return the trials whose codes are known."""
        for trial in trials:
            if trial.number not in self._codes and features.options.keys() <= trial.params.keys():
                self._codes[trial.number] = features.code(trial.params)
        return [trial for trial in trials if trial.number in self._codes]

    def _history(
        self,
        features: SpaceFeatures,
        study: Study,
        known: Sequence[FrozenTrial],
        finished: Sequence[FrozenTrial],
    ) -> History:
        scored = [trial for trial in finished if trial.state is TrialState.COMPLETE]
        limits = sorted({label for trial in scored for label in trial.constraints})
        m = len(study.directions)
        return History(
            np.array([self._codes[t.number] for t in scored], np.int64).reshape(
                len(scored), len(features.sizes)
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
    """Return a hashable key for each network."""
    return [row.tobytes() for row in np.ascontiguousarray(codes, dtype=np.int64)]
