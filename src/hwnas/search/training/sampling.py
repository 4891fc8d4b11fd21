"""Which networks of a supernet a training step trains."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hwnas.plugin import resolve
from hwnas.search.training.attentive import attentive_best, attentive_worst, knows_macs
from hwnas.search.training.fair import fair
from hwnas.search.training.progressive import progressive
from hwnas.search_spaces import Architecture, SearchSpace

__all__ = [
    "SAMPLING",
    "Losses",
    "Sampling",
    "auto",
    "check_sampling",
    "networks_a_step",
    "sampling_rule",
    "sandwich",
    "teacher",
    "uniform",
]

Sampling = Callable[..., list[Architecture]]
"""Draws the networks of one step: ``(space, rng, random_subnets)``, and whichever it takes of

- ``step``: counted from 0;
- ``share``: of the training that is done, in [0, 1);
- ``seed``: of the training;
- ``losses``: gives the losses of networks on the images of this step, see `Losses`.

At least one architecture. If the first is the largest of the space, it is the teacher of the
others; otherwise all of them learn from labels alone. Everything random comes from ``rng``, or from
``seed`` and ``step``, so that workers that train together draw the same.
"""

Losses = Callable[[Sequence[Architecture]], list[float]]
"""Losses of some networks on the labels of a step, before they are trained on it; the mean over all
workers. It costs a forward pass for each."""

_FURTHER = ("step", "share", "seed", "losses")


def auto(
    space: SearchSpace, rng: random.Random, random_subnets: int, share: float
) -> list[Architecture]:
    """Progressive shrinking, or where the largest network is trained already the sandwich rule.

    In experiments/ranking it agrees with training each network alone about as much as
    multiply-accumulates do, more than most rules. It begins
    with training the largest one, of which a network with trained weights has no need.
    """
    if space.pretrained:
        return sandwich(space, rng, random_subnets)
    return progressive(space, rng, random_subnets, share)


def sandwich(space: SearchSpace, rng: random.Random, random_subnets: int) -> list[Architecture]:
    """The largest, random ones, the smallest (the sandwich rule, Yu and Huang, ICCV 2019)."""
    drawn = [space.sample(rng) for _ in range(random_subnets)]
    return [space.largest(), *drawn, space.smallest()]


def teacher(space: SearchSpace, rng: random.Random, random_subnets: int) -> list[Architecture]:
    """The largest and random ones in place of the smallest, so that no student is favoured."""
    return [space.largest(), *(space.sample(rng) for _ in range(random_subnets + 1))]


def uniform(space: SearchSpace, rng: random.Random, random_subnets: int) -> list[Architecture]:
    """One random network (single path one-shot, Guo et al., ECCV 2020)."""
    return [space.sample(rng)]


SAMPLING: Mapping[str, Sampling] = {
    "attentive-best": attentive_best,
    "attentive-worst": attentive_worst,
    "auto": auto,
    "fair": fair,
    "progressive": progressive,
    "sandwich": sandwich,
    "teacher": teacher,
    "uniform": uniform,
}
"""The rules by name. A user's own is ``"package.module:function"``."""


def sampling_rule(name: str) -> Sampling:
    """The rule of a name, to be called with all that a rule may ask for.

    Raises:
        ConfigError: There is no such rule.
    """
    found = resolve("train.sampling", name, SAMPLING)
    parameters = inspect.signature(found).parameters.values()
    all_of_them = any(each.kind is each.VAR_KEYWORD for each in parameters)
    taken = [k for k in _FURTHER if all_of_them or k in {each.name for each in parameters}]

    def draw(
        space: SearchSpace, rng: random.Random, random_subnets: int, **known: Any
    ) -> list[Architecture]:
        return found(space, rng, random_subnets, **{key: known[key] for key in taken})

    return draw


def networks_a_step(name: str, random_subnets: int) -> int:
    """How many networks a rule trains in a step, at the most; 1 for a user's own."""
    if name not in SAMPLING:
        return 1
    return {"uniform": 1, "fair": random_subnets + 1}.get(name, random_subnets + 2)


def check_sampling(name: str, space: SearchSpace) -> None:
    """Refuse a rule that this space has not what it takes for.

    Raises:
        ConfigError: There is no such rule, or it goes by MACs that the space cannot tell.
    """
    if resolve("train.sampling", name, SAMPLING) in (attentive_best, attentive_worst):
        knows_macs(space)
