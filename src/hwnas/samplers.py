"""Samplers with their options, for `hwnas.search`.

Each function returns the name of a sampler with its options. A sampler of your own is the class or
function that makes it, or an instance of Optuna's `BaseSampler`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

from optuna.samplers import BaseSampler

from hwnas.api.options import named_with_options
from hwnas.recipe import Named
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search.samplers.botorch import QLogNEHVI as _QLogNEHVI
from hwnas.search.samplers.eas import EAS as _EAS
from hwnas.search.samplers.from_optuna import gp, nsga2, nsga3, random, tpe
from hwnas.search.samplers.generative.sampler import Generative as _Generative
from hwnas.search.samplers.growth import Growth as _Growth
from hwnas.search.samplers.guided.sampler import GuidedSampler
from hwnas.search.samplers.predicted_front import forest, linas, surrogate_nsga2
from hwnas.search.samplers.proxy_order import ProxyOrder as _ProxyOrder
from hwnas.search.samplers.reinforce import Reinforce as _Reinforce
from hwnas.search.samplers.stratified import Stratified as _Stratified

__all__ = [
    "EAS",
    "GP",
    "LINAS",
    "NSGA2",
    "NSGA3",
    "TPE",
    "Forest",
    "Generative",
    "Growth",
    "Guided",
    "ProxyOrder",
    "QLogNEHVI",
    "Random",
    "Reinforce",
    "Stratified",
    "SurrogateNSGA2",
]

P = ParamSpec("P")
_Features = SpaceFeatures | None


def _of_batches(
    name: str, factory: Callable[Concatenate[int, int, _Features, P], BaseSampler]
) -> Callable[P, Named]:
    return named_with_options(name, factory, ("seed", "batch", "features"))


def _of_generations(
    name: str, factory: Callable[Concatenate[int, int, P], BaseSampler]
) -> Callable[P, Named]:
    return named_with_options(name, factory, ("seed", "trials"))


def _of_trials(
    name: str, factory: Callable[Concatenate[int, P], BaseSampler]
) -> Callable[P, Named]:
    return named_with_options(name, factory, ("seed",))


EAS = _of_batches("eas", _EAS)
Forest = _of_batches("forest", forest)
Generative = _of_batches("generative", _Generative)
GP = _of_trials("gp", gp)
Growth = _of_batches("growth", _Growth)
Guided = _of_batches("guided", GuidedSampler)
LINAS = _of_batches("linas", linas)
NSGA2 = _of_generations("nsga2", nsga2)
NSGA3 = _of_generations("nsga3", nsga3)
ProxyOrder = _of_batches("proxy-order", _ProxyOrder)
QLogNEHVI = _of_batches("qlognehvi", _QLogNEHVI)
Random = _of_trials("random", random)
Reinforce = _of_batches("reinforce", _Reinforce)
Stratified = _of_batches("stratified", _Stratified)
SurrogateNSGA2 = _of_batches("surrogate-nsga2", surrogate_nsga2)
TPE = _of_trials("tpe", tpe)


def __dir__() -> list[str]:
    return __all__
