"""Fair sampling: each option of each choice is trained equally often."""

from __future__ import annotations

import math
import random

from hwnas.search.training.sampling.rule import SamplingPlugin
from hwnas.search_spaces import Architecture, Choice, SearchSpace
from hwnas.search_spaces.space.choices import Option

__all__ = ["PLUGINS", "fair", "fair_cycle", "fair_draw"]


def fair(
    space: SearchSpace, rng: random.Random, random_subnets: int, step: int, seed: int
) -> list[Architecture]:
    """Return the next networks of `fair_draw`, without a teacher (FairNAS, Chu et al., ICCV 2021).

    A step of FairNAS trains as many networks as a layer has options, uses each option once, and
    adds up the gradients (strict fairness, section 3.2). Here choices may have different numbers of
    options, and may be present in some networks only. A step therefore has ``random_subnets + 1``
    networks, and all counts are equal after `fair_cycle` draws. If all choices are always present
    and have ``random_subnets + 1`` options, each step is a step of FairNAS.
    """
    count = random_subnets + 1
    return [fair_draw(space, step * count + i, seed) for i in range(count)]


def fair_draw(space: SearchSpace, draw: int, seed: int) -> Architecture:
    """Return one network of an infinite sequence that is a function of the seed.

    Each choice goes through its options in a random order, then in another random order, and so on.
    A choice that is absent from a network (`Choice.when`) does not advance.

    Args:
        space: Space of the networks.
        draw: Index in the sequence, from 0.
        seed: Seed of the orders.
    """
    turns: dict[str, int] = {}
    orders: dict[str, list[Option]] = {}
    values: dict[str, Option] = {}
    for choice in space.choices:
        turn = draw
        if choice.when is not None:
            parent, allowed = choice.when.name, choice.when.values
            if parent not in values or values[parent] not in allowed:
                continue
            rounds, within = divmod(turns[parent], len(orders[parent]))
            each_round = sum(option in allowed for option in orders[parent])
            turn = rounds * each_round + sum(o in allowed for o in orders[parent][:within])
        rounds, within = divmod(turn, len(choice.options))
        turns[choice.name] = turn
        orders[choice.name] = _order(choice, rounds, seed)
        values[choice.name] = orders[choice.name][within]
    return space.architecture(values)


def fair_cycle(space: SearchSpace) -> int:
    """Return the number of draws after which each choice has drawn its options equally often.

    The draws are counted from any multiple of this number.
    """
    rounds: dict[str, int] = {}
    for choice in space.choices:
        before = 1 if choice.when is None else rounds[choice.when.name]
        rounds[choice.name] = before * len(choice.options)
    return math.lcm(*rounds.values())


def _order(choice: Choice, rounds: int, seed: int) -> list[Option]:
    options = list(choice.options)
    random.Random(f"{seed}-{choice.name}-{rounds}").shuffle(options)
    return options


PLUGINS = (
    SamplingPlugin(
        "sampling rule", "fair", fair, "Each option equally often (FairNAS)", beyond_random=1
    ),
)
