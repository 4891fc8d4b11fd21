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
    size = population_size or _population(trials)
    return NSGAIISampler(population_size=size, seed=seed)


def nsga3(seed: int, trials: int, population_size: int | None = None) -> BaseSampler:
    size = population_size or _population(trials)
    return NSGAIIISampler(population_size=size, seed=seed)


def tpe(seed: int, n_startup_trials: int = 20, multivariate: bool = True) -> BaseSampler:
    return optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=n_startup_trials, multivariate=multivariate
    )


def gp(seed: int, n_startup_trials: int = 20) -> BaseSampler:
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=n_startup_trials)


def random(seed: int) -> BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)
