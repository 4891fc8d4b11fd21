"""Sampling rules, which draw the networks of a supernet that a training step trains."""

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
"""Function that draws the networks of one step. It is called with ``(space, rng, random_subnets)``
and with those of the following that it accepts:

- ``step``: index of the step, from 0;
- ``share``: share of the training that is done, in [0, 1);
- ``seed``: seed of the training;
- ``losses``: function that returns the losses of networks on the images of this step, see `Losses`.

It returns at least one architecture. If the first is the largest of the space, it is the teacher of
the others; otherwise all of them learn from labels alone. All random numbers come from ``rng``, or
from ``seed`` and ``step``, so that workers that train together draw the same networks.
"""

Losses = Callable[[Sequence[Architecture]], list[float]]
"""Function that returns the losses of networks on the labels of a step, before they are trained on
it, averaged over all workers. It costs a forward pass for each network."""

_FURTHER = ("step", "share", "seed", "losses")


def auto(
    space: SearchSpace, rng: random.Random, random_subnets: int, share: float
) -> list[Architecture]:
    """Draw by progressive shrinking, or by the sandwich rule if the space has trained weights.

    In experiments/ranking, the ranking by progressive shrinking agrees with that of networks
    trained alone about as well as the ranking by multiply-accumulates does, and better than most
    rules. It begins by training the largest network, which trained weights make unnecessary.
    """
    if space.pretrained:
        return sandwich(space, rng, random_subnets)
    return progressive(space, rng, random_subnets, share)


def sandwich(space: SearchSpace, rng: random.Random, random_subnets: int) -> list[Architecture]:
    """Draw by the sandwich rule: largest, random ones, smallest (Yu and Huang, ICCV 2019)."""
    drawn = [space.sample(rng) for _ in range(random_subnets)]
    return [space.largest(), *drawn, space.smallest()]


def teacher(space: SearchSpace, rng: random.Random, random_subnets: int) -> list[Architecture]:
    """Draw the largest network and random ones; no smallest one, so that no student is favoured."""
    return [space.largest(), *(space.sample(rng) for _ in range(random_subnets + 1))]


def uniform(space: SearchSpace, rng: random.Random, random_subnets: int) -> list[Architecture]:
    """Draw one random network (single path one-shot, Guo et al., ECCV 2020)."""
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
"""Sampling rules by name. A user's own rule is named ``"package.module:function"``."""


def sampling_rule(name: str) -> Sampling:
    """Return the rule of a name, wrapped to accept all arguments that a rule may take.

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
    """Return the most networks that a rule trains in a step; 1 for a user's own rule."""
    if name not in SAMPLING:
        return 1
    return {"uniform": 1, "fair": random_subnets + 1}.get(name, random_subnets + 2)


def check_sampling(name: str, space: SearchSpace) -> None:
    """Check that a space supports a sampling rule.

    Raises:
        ConfigError: There is no such rule, or it needs MACs that the space does not know.
    """
    if resolve("train.sampling", name, SAMPLING) in (attentive_best, attentive_worst):
        knows_macs(space)
