"""Sampling of networks in groups of falling bit widths."""

from __future__ import annotations

import math
import random

from hwnas.errors import ConfigError
from hwnas.search.training.sampling.rule import SamplingPlugin
from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["PLUGINS", "bit_groups", "has_bits"]

_BITS = ("weight_bits", "activation_bits")


def bit_groups(space: SearchSpace, rng: random.Random, random_subnets: int) -> list[Architecture]:
    """Draw the largest network, then random ones with fewer and fewer bits.

    The bit widths of each block are divided into ``random_subnets + 1`` groups, from the widest to
    the narrowest, and each random network takes all of its bit widths from one group. With
    ``train.teacher = "previous"``, each network learns from the one with the next wider bits: the
    group progressive guidance of EQ-Net (Xu et al., ICCV 2023, section 3.4).
    """
    groups = random_subnets + 1
    return [space.largest(), *(_of_group(space, rng, g, groups) for g in range(groups))]


def has_bits(space: SearchSpace) -> None:
    """Check that the networks of a space differ in bit widths.

    Raises:
        ConfigError: They do not.
    """
    if not any(_is_bits(choice.name) for choice in space.choices):
        raise ConfigError(
            'train.sampling is "bit-groups", but the networks of space '
            f'{space.name!r} have no bit widths; use space.name = "quantised", or another rule'
        )


def _of_group(space: SearchSpace, rng: random.Random, group: int, groups: int) -> Architecture:
    values = {choice.name: rng.choice(choice.options) for choice in space.choices}
    for choice in space.choices:
        if _is_bits(choice.name):
            falling = choice.options[::-1]
            start = math.floor(group * len(falling) / groups)
            end = max(start + 1, math.ceil((group + 1) * len(falling) / groups))
            values[choice.name] = rng.choice(falling[start:end])
    return space.architecture(values)


def _is_bits(name: str) -> bool:
    return name.rpartition(".")[2] in _BITS


PLUGINS = (
    SamplingPlugin(
        "sampling rule",
        "bit-groups",
        bit_groups,
        "Largest, then random ones with fewer and fewer bits (EQ-Net)",
        beyond_random=2,
        check=has_bits,
    ),
)
