"""Which networks of a supernet a training step trains."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["SAMPLING", "Sampling", "sandwich", "teacher", "uniform"]


class Sampling(Protocol):
    """Draws the networks of one step; the first is the teacher of the others, if there are any."""

    def __call__(
        self, space: SearchSpace, rng: random.Random, random_subnets: int
    ) -> list[Architecture]:
        """At least one architecture."""


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
    "sandwich": sandwich,
    "teacher": teacher,
    "uniform": uniform,
}
"""The rules by name. A user's own is ``"package.module:function"``."""
