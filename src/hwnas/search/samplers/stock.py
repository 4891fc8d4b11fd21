"""Optuna's own samplers."""

from __future__ import annotations

import optuna
from optuna.samplers import BaseSampler

from hwnas.search.samplers.generations import NSGAIIISampler, NSGAIISampler

__all__ = ["gp", "nsga2", "nsga3", "random", "tpe"]


def _population(trials: int) -> int:
    """Ten generations, unless that makes them very small or slow to turn over.

    A small population in a long search converges, and then proposes what it has seen.
    """
    return min(max(trials // 10, 20), 100)


def nsga2(seed: int, trials: int, population_size: int | None = None) -> BaseSampler:
    """NSGA-II with a tenth of the trials in a generation, but at least 20 and at most 100."""
    size = population_size or _population(trials)
    return NSGAIISampler(population_size=size, seed=seed)


def nsga3(seed: int, trials: int, population_size: int | None = None) -> BaseSampler:
    """NSGA-III with generations as for `nsga2`."""
    size = population_size or _population(trials)
    return NSGAIIISampler(population_size=size, seed=seed)


def tpe(seed: int, n_startup_trials: int = 10, multivariate: bool = True) -> BaseSampler:
    """A tree-structured Parzen estimator."""
    return optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=n_startup_trials, multivariate=multivariate
    )


def gp(seed: int, n_startup_trials: int = 10) -> BaseSampler:
    """A Gaussian process."""
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=n_startup_trials)


def random(seed: int) -> BaseSampler:
    """Uniformly at random."""
    return optuna.samplers.RandomSampler(seed=seed)
