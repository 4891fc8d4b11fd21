"""Optuna's own samplers."""

from __future__ import annotations

import optuna
from optuna.samplers import BaseSampler

from hwnas.registry import Plugin
from hwnas.search.samplers.generations import NSGAIIISampler, NSGAIISampler

__all__ = ["PLUGINS", "gp", "nsga2", "nsga3", "random", "tpe"]


def _population(trials: int) -> int:
    """Return the population size that gives ten generations, bounded to 20..100.

    A small population in a long search converges and then proposes networks again. A large
    population needs many trials for one generation.
    """
    return min(max(trials // 10, 20), 100)


def nsga2(seed: int, trials: int, population_size: int | None = None) -> BaseSampler:
    """Build NSGA-II (Deb et al., IEEE TEC 2002).

    Args:
        seed: Seed of the random numbers.
        trials: Number of candidates that the search evaluates in all.
        population_size: Networks of a generation; if None, a tenth of the trials, 20 to 100.
    """
    size = population_size or _population(trials)
    return NSGAIISampler(population_size=size, seed=seed)


def nsga3(seed: int, trials: int, population_size: int | None = None) -> BaseSampler:
    """Build NSGA-III (Deb and Jain, IEEE TEC 2014).

    Args:
        seed: Seed of the random numbers.
        trials: Number of candidates that the search evaluates in all.
        population_size: Networks of a generation; if None, a tenth of the trials, 20 to 100.
    """
    size = population_size or _population(trials)
    return NSGAIIISampler(population_size=size, seed=seed)


def tpe(seed: int, n_startup_trials: int = 10, multivariate: bool = True) -> BaseSampler:
    """Build a tree-structured Parzen estimator (TPE; Bergstra et al., NIPS 2011).

    Args:
        seed: Seed of the random numbers.
        n_startup_trials: Number of random trials before the first model is fitted.
        multivariate: Whether choices are modelled together rather than one by one.
    """
    return optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=n_startup_trials, multivariate=multivariate
    )


def gp(seed: int, n_startup_trials: int = 10) -> BaseSampler:
    """Build Optuna's Gaussian-process sampler.

    Args:
        seed: Seed of the random numbers.
        n_startup_trials: Number of random trials before the first model is fitted.
    """
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=n_startup_trials)


def random(seed: int) -> BaseSampler:
    """Build a sampler that draws uniformly at random."""
    return optuna.samplers.RandomSampler(seed=seed)


PLUGINS = (
    Plugin("sampler", "gp", gp, "Gaussian-process sampler of Optuna"),
    Plugin("sampler", "nsga2", nsga2, "NSGA-II of Optuna"),
    Plugin("sampler", "nsga3", nsga3, "NSGA-III of Optuna"),
    Plugin("sampler", "random", random, "Random search"),
    Plugin("sampler", "tpe", tpe, "Tree-structured Parzen estimator of Optuna"),
)
