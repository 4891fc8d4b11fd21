"""Registry of the search strategies by their names in a recipe."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna.samplers import BaseSampler

from hwnas.plugin import build, resolve
from hwnas.search.samplers import stock
from hwnas.search.samplers.batch import BatchSampler
from hwnas.search.samplers.botorch import QLogNEHVI
from hwnas.search.samplers.growth import Growth
from hwnas.search.samplers.guided import GuidedSampler
from hwnas.search.samplers.predicted_front import forest, linas, surrogate_nsga2
from hwnas.search.samplers.proxy_order import ProxyOrder
from hwnas.search.samplers.reinforce import Reinforce
from hwnas.search.samplers.space_features import SpaceFeatures
from hwnas.search.samplers.stratified import Stratified

__all__ = ["SAMPLERS", "make_sampler"]

SAMPLERS: Mapping[str, Callable[..., BaseSampler]] = {
    "forest": forest,
    "gp": stock.gp,
    "growth": Growth,
    "guided": GuidedSampler,
    "linas": linas,
    "nsga2": stock.nsga2,
    "nsga3": stock.nsga3,
    "proxy-order": ProxyOrder,
    "qlognehvi": QLogNEHVI,
    "random": stock.random,
    "reinforce": Reinforce,
    "stratified": Stratified,
    "surrogate-nsga2": surrogate_nsga2,
    "tpe": stock.tpe,
}
"""Sampler factories by name. A user's own factory is named ``"package.module:factory"`` and is
called with those of ``seed``, ``trials``, ``batch`` and ``knowledge`` that it accepts."""


def make_sampler(
    name: str,
    seed: int,
    options: Mapping[str, Any],
    trials: int = 200,
    batch: int = 4,
    knowledge: SpaceFeatures | None = None,
    known: int = 0,
) -> BaseSampler:
    """Build a sampler from its name in a recipe.

    Args:
        name: A key of `SAMPLERS`, or ``"package.module:factory"``.
        seed: Seed of the sampler's random numbers.
        options: Keyword arguments of the factory.
        trials: Number of candidates that the search evaluates in all.
        batch: Number of candidates that are evaluated at a time.
        knowledge: Description of the space: its options, features and known costs.
        known: Number of trials that the study already holds. A `BatchSampler` continues from
            these trials. Any other sampler would draw the same random numbers again, so its seed is
            mixed with this number.

    Raises:
        ConfigError: The name or an option is unknown.
    """
    given = {"trials": trials, "batch": batch, "knowledge": knowledge}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        factory = resolve("sampler", name, SAMPLERS)
        made = build("search.options", factory, options, seed=_mixed(seed, known), **given)
        if isinstance(made, BatchSampler):
            made = build("search.options", factory, options, seed=seed, **given)
    return made


def _mixed(seed: int, known: int) -> int:
    return (seed * 1_000_003 + known) % 2**32
