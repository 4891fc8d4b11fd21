"""Sampling rules that need nothing but a space: sandwich, teacher, uniform, and the default."""

from __future__ import annotations

import random

from hwnas.search.training.sampling.progressive import progressive
from hwnas.search.training.sampling.rule import SamplingPlugin
from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["PLUGINS", "auto", "sandwich", "teacher", "uniform"]


def auto(
    space: SearchSpace, rng: random.Random, random_subnets: int, share: float
) -> list[Architecture]:
    """Draw by progressive shrinking, or by the sandwich rule if the space has trained weights.

    In experiments/ranking, the ranking by progressive shrinking agrees with that of networks
    trained alone about as well as the ranking by multiply-accumulates does, and better than the
    rankings by most other rules. Progressive shrinking first trains the largest network, which is
    unnecessary if the space has trained weights.
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


PLUGINS = (
    SamplingPlugin(
        "sampling rule",
        "auto",
        auto,
        "Progressive shrinking, or the sandwich rule for trained weights",
        beyond_random=2,
    ),
    SamplingPlugin(
        "sampling rule", "sandwich", sandwich, "Largest, random and smallest", beyond_random=2
    ),
    SamplingPlugin("sampling rule", "teacher", teacher, "Largest and random", beyond_random=2),
    SamplingPlugin(
        "sampling rule", "uniform", uniform, "One random network (single path one-shot)"
    ),
)
