"""Registry of the sampling rules, which draw the networks that a training step trains.

To add a rule, write a module here with a tuple ``PLUGINS``, as in `fair`; no list names it.
"""

from __future__ import annotations

import inspect
import random
from typing import Any

from hwnas.registry import Registry
from hwnas.search.training.sampling.rule import Sampling, SamplingPlugin
from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["SAMPLING", "check_sampling", "networks_a_step", "sampling_rule"]

_FURTHER = ("step", "share", "seed", "losses")

SAMPLING: Registry[Sampling] = Registry("sampling rule", __package__)
"""Sampling rules by name."""


def sampling_rule(name: str) -> Sampling:
    """Return the rule of a name, wrapped to accept all arguments that a rule may take.

    Raises:
        ConfigError: There is no such rule.
    """
    found = SAMPLING.find(name, "train.sampling")
    parameters = inspect.signature(found).parameters.values()
    all_of_them = any(each.kind is each.VAR_KEYWORD for each in parameters)
    taken = [k for k in _FURTHER if all_of_them or k in {each.name for each in parameters}]

    def draw(
        space: SearchSpace, rng: random.Random, random_subnets: int, **known: Any
    ) -> list[Architecture]:
        return found(space, rng, random_subnets, **{key: known[key] for key in taken})

    return draw


def networks_a_step(name: str, random_subnets: int) -> int:
    """Return the largest number of networks in a step of a rule; 1 for a user's own rule."""
    beyond = _descriptor(name).beyond_random
    return 1 if beyond is None else random_subnets + beyond


def check_sampling(name: str, space: SearchSpace) -> None:
    """Check that a space supports a sampling rule.

    Raises:
        ConfigError: There is no such rule, or the space does not support it.
    """
    check = _descriptor(name).check
    if check is not None:
        check(space)


def _descriptor(name: str) -> SamplingPlugin:
    """Return the descriptor of a rule; one without capabilities for a user's own rule."""
    plugin = SAMPLING.plugin(name) if name in SAMPLING else None
    if isinstance(plugin, SamplingPlugin):
        return plugin
    return SamplingPlugin(SAMPLING.kind, name, SAMPLING.find(name, "train.sampling"))
