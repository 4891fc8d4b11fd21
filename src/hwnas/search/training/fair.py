"""Each option of each choice trained equally often."""

from __future__ import annotations

import math
import random

from hwnas.search_spaces import Architecture, Choice, SearchSpace
from hwnas.search_spaces.choices import Option

__all__ = ["fair", "fair_cycle", "fair_draw"]


def fair(
    space: SearchSpace, rng: random.Random, random_subnets: int, step: int, seed: int
) -> list[Architecture]:
    """As many draws as `fair_draw` has next, without a teacher (FairNAS, Chu et al., ICCV 2021).

    FairNAS makes a step of as many networks as a layer has options, no option twice, and adds up
    their gradients (strict fairness, section 3.2). Here choices may have different numbers of
    options, and may be there in some networks only, so a step has ``random_subnets + 1`` networks,
    and it is over `fair_cycle` draws that all counts are equal; with choices that all have so many
    options and are always there, each step is one of FairNAS's.
    """
    count = random_subnets + 1
    return [fair_draw(space, step * count + i, seed) for i in range(count)]


def fair_draw(space: SearchSpace, draw: int, seed: int) -> Architecture:
    """One network of an endless series that is a function of the seed.

    Each choice goes through its options in a random order, then in another one, and so on; a choice
    that has no effect in a network does not move on in it.

    Args:
        space: Whose network.
        draw: Place in the series, counted from 0.
        seed: Of the orders.
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
    """After how many draws, counted from any multiple of it, options of a choice are even."""
    rounds: dict[str, int] = {}
    for choice in space.choices:
        before = 1 if choice.when is None else rounds[choice.when.name]
        rounds[choice.name] = before * len(choice.options)
    return math.lcm(*rounds.values())


def _order(choice: Choice, rounds: int, seed: int) -> list[Option]:
    options = list(choice.options)
    random.Random(f"{seed}-{choice.name}-{rounds}").shuffle(options)
    return options
