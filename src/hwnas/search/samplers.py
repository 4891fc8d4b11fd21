"""Optuna's samplers by their names in a recipe."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.samplers import BaseGASampler, BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from hwnas.plugin import build, resolve

__all__ = ["SAMPLERS", "make_sampler"]


class _Generations(BaseGASampler):
    """Remembers the newest generation and its parents.

    Optuna looks both up among all trials of the study for each one that it proposes.
    """

    _newest: tuple[int, int] | None = None
    """Number of the generation, and how many of its trials are complete."""
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
        # In the order in which Optuna gives them when it looks them up again.
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


# Optuna files generations under the name of the class, and goes on with a study by that name.
class NSGAIISampler(_Generations, optuna.samplers.NSGAIISampler):
    pass


class NSGAIIISampler(_Generations, optuna.samplers.NSGAIIISampler):
    pass


def _population(trials: int) -> int:
    """Ten generations, unless that makes them very small or slow to turn over.

    A small population in a long search converges, and then proposes what it has seen.
    """
    return min(max(trials // 10, 20), 100)


def _nsga2(seed: int, trials: int, population_size: int | None = None) -> BaseSampler:
    size = population_size or _population(trials)
    return NSGAIISampler(population_size=size, seed=seed)


def _nsga3(seed: int, trials: int, population_size: int | None = None) -> BaseSampler:
    size = population_size or _population(trials)
    return NSGAIIISampler(population_size=size, seed=seed)


def _tpe(seed: int, n_startup_trials: int = 20, multivariate: bool = True) -> BaseSampler:
    return optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=n_startup_trials, multivariate=multivariate
    )


def _gp(seed: int, n_startup_trials: int = 20) -> BaseSampler:
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=n_startup_trials)


def _random(seed: int) -> BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)


SAMPLERS: Mapping[str, Callable[..., BaseSampler]] = {
    "gp": _gp,
    "nsga2": _nsga2,
    "nsga3": _nsga3,
    "random": _random,
    "tpe": _tpe,
}
"""Optuna's samplers by name. A user's own is ``"package.module:factory"``, called with ``seed``
and, if it takes that, ``trials``."""


def make_sampler(
    name: str, seed: int, options: Mapping[str, Any], trials: int = 200
) -> BaseSampler:
    """A sampler by its name in a recipe.

    Args:
        name: A key of `SAMPLERS`, or ``"package.module:factory"``.
        seed: Of everything random in it.
        options: Keyword arguments of the factory.
        trials: How many candidates the search evaluates in all.

    Raises:
        ConfigError: The name or an option is unknown.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        factory = resolve("sampler", name, SAMPLERS)
        return build("search.options", factory, options, seed=seed, trials=trials)
