"""Registry of samplers, and construction of a sampler from its name in a recipe.

To add a sampler, write a module here with a tuple ``PLUGINS``, as in `proxy_order`, and a function
for Python in `hwnas.samplers`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna.samplers import BaseSampler

from hwnas.plugin import build
from hwnas.registry import Registry
from hwnas.search.samplers.base.batch import BatchSampler
from hwnas.search.samplers.base.space_features import SpaceFeatures

__all__ = ["SAMPLERS", "make_sampler"]

SAMPLERS: Registry[Callable[..., BaseSampler]] = Registry("sampler", __package__)
"""Sampler factories by name. A user's own factory is called with those of ``seed``, ``trials``,
``batch`` and ``features`` that it accepts."""


def make_sampler(
    sampler: str | Callable[..., BaseSampler],
    seed: int,
    options: Mapping[str, Any],
    trials: int = 200,
    batch: int = 4,
    features: SpaceFeatures | None = None,
    known: int = 0,
) -> BaseSampler:
    """Build a sampler.

    Args:
        sampler: Factory of the sampler, or its name: a key of `SAMPLERS`, or
            ``"package.module:factory"``.
        seed: Seed of the sampler's random numbers.
        options: Keyword arguments of the factory.
        trials: Number of candidates that the search evaluates in all.
        batch: Number of candidates that are evaluated at a time.
        features: Description of the space: its options, features and known costs.
        known: Number of trials that the study already holds. A `BatchSampler` continues from
            these trials. Any other sampler would draw the same random numbers again, so its seed is
            mixed with this number.

    Raises:
        ConfigError: The name or an option is unknown.
    """
    given = {"trials": trials, "batch": batch, "features": features}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        factory = SAMPLERS.find(sampler) if isinstance(sampler, str) else sampler
        made = build("search.options", factory, options, seed=_mixed(seed, known), **given)
        if isinstance(made, BatchSampler):
            made = build("search.options", factory, options, seed=seed, **given)
    return made


def _mixed(seed: int, known: int) -> int:
    return (seed * 1_000_003 + known) % 2**32
