"""Progressive shrinking: options are opened one kind after the other, the largest first."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hwnas.search_spaces import Architecture, Choice, SearchSpace
from hwnas.search_spaces.choices import Option

__all__ = ["open_options", "progressive"]

_ALONE = 6
"""Length of the phase in which the largest network is trained alone, as a part of the whole."""
_KINDS = (
    (4, ("resolution", "kernel_size", "patch_size")),
    (5, ("depth",)),
    (5, ("width", "expand_ratio")),
)
"""Length of each further phase, and what it opens; the last one also opens all that is not listed
here."""
_STEPWISE = ("depth", "width", "expand_ratio")
_FIRST_STEP = 1 / 6


def progressive(
    space: SearchSpace, rng: random.Random, random_subnets: int, share: float
) -> list[Architecture]:
    """The largest, and random ones of what is open at this share of the training.

    Progressive shrinking (once-for-all, Cai et al., ICLR 2020, section 3.3): at first the largest
    network alone, then kernel sizes and resolutions, then depths, then widths and expansions, each
    phase on top of those before. The phases' lengths are about in the proportions of the paper's
    schedule; phases that open nothing in this space are left out. Two departures: the teacher is
    the largest network as it is in this step, not a frozen one; and resolutions wait for their
    phase, too.

    Args:
        space: Whose networks.
        rng: Source of randomness.
        random_subnets: One more than this are drawn, once anything is open.
        share: Of the training that is done, in [0, 1].
    """
    options = open_options(space, share)
    if all(len(each) == 1 for each in options.values()):
        return [space.largest()]
    drawn = (
        space.architecture({name: rng.choice(each) for name, each in options.items()})
        for _ in range(random_subnets + 1)
    )
    return [space.largest(), *drawn]


def open_options(space: SearchSpace, share: float) -> Mapping[str, tuple[Option, ...]]:
    """The options of each choice that may be drawn; never fewer at a later share.

    Args:
        space: Whose choices.
        share: Of the training that is done, in [0, 1].
    """
    kinds = {choice.name: _kind(choice) for choice in space.choices}
    present = sorted(set(kinds.values()))
    whole = _ALONE + sum(_KINDS[kind][0] for kind in present)
    begun: dict[int, float] = {}
    start = float(_ALONE)
    for kind in present:
        length = _KINDS[kind][0]
        begun[kind] = (share * whole - start) / length
        start += length
    return {
        choice.name: choice.options[-_opened(choice, begun[kinds[choice.name]]) :]
        for choice in space.choices
    }


def _opened(choice: Choice, begun: float) -> int:
    """How many options are open when a phase is so far, negative before it."""
    if begun < 0:
        return 1
    if begun < _FIRST_STEP and _leaf(choice) in _STEPWISE:
        return min(2, len(choice.options))
    return len(choice.options)


def _kind(choice: Choice) -> int:
    for kind, (_, leaves) in enumerate(_KINDS):
        if _leaf(choice) in leaves:
            return kind
    return len(_KINDS) - 1


def _leaf(choice: Choice) -> str:
    return choice.name.rpartition(".")[2]
