"""Optuna's genetic algorithms, with a cache of the newest generation and its parents."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.samplers import BaseGASampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

__all__ = ["NSGAIIISampler", "NSGAIISampler"]


class _Generations(BaseGASampler):
    """Genetic algorithm that caches the newest generation and its parents.

    Optuna searches all trials of the study for both of them at every proposal.
    """

    _newest: tuple[int, int] | None = None
    """Number of the newest generation, and number of its complete trials."""
    _parents: tuple[int, list[FrozenTrial]] | None = None

    def get_trial_generation(self, study: Study, trial: FrozenTrial) -> int:
        if self._newest is None:
            generation = super().get_trial_generation(study, trial)
            self._newest = generation, len(self.get_population(study, generation))
            return generation
        known: int | None = trial.system_attrs.get(self._get_generation_key())
        if known is not None:
            return known
        generation, size = self._newest
        assert self.population_size is not None
        generation += size >= self.population_size
        study._storage.set_trial_system_attr(
            trial._trial_id, self._get_generation_key(), generation
        )
        return generation

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        if self._parents is not None and self._parents[0] == generation:
            return self._parents[1]
        parents = super().get_parent_population(study, generation)
        # In the order in which Optuna returns them when it reads them again from the study.
        self._parents = generation, sorted(parents, key=lambda trial: trial.number)
        return parents

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        super().after_trial(study, trial, state, values)
        if self._newest is None or state is not TrialState.COMPLETE:
            return
        generation, size = self._newest
        own = trial.system_attrs.get(self._get_generation_key(), -1)
        if own == generation:
            self._newest = generation, size + 1
        elif own > generation:
            self._newest = own, 1


# The class names are Optuna's: it stores generations under the name of the class, and a resumed
# study finds them by that name.
class NSGAIISampler(_Generations, optuna.samplers.NSGAIISampler):
    """Optuna's NSGA-II (Deb et al., IEEE TEC 2002) with cached generations."""


class NSGAIIISampler(_Generations, optuna.samplers.NSGAIIISampler):
    """Optuna's NSGA-III (Deb and Jain, IEEE TEC 2014) with cached generations."""
