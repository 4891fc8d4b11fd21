"""Progressive shrinking: options become available one kind after the other, the largest first."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hwnas.search.training.sampling.rule import SamplingPlugin
from hwnas.search_spaces import Architecture, Choice, SearchSpace
from hwnas.search_spaces.space.choices import Option

__all__ = ["PLUGINS", "open_options", "progressive"]

_ALONE = 6
"""Relative length of the phase in which the largest network is trained alone."""
_KINDS = (
    (4, ("resolution", "kernel_size", "patch_size")),
    (5, ("depth",)),
    (5, ("width", "expand_ratio")),
)
"""Relative length of each further phase, and the kinds of choices that it opens; the last phase
also opens all choices that are not listed here."""
_STEPWISE = ("depth", "width", "expand_ratio")
_FIRST_STEP = 1 / 6


def progressive(
    space: SearchSpace, rng: random.Random, random_subnets: int, share: float
) -> list[Architecture]:
    """Draw the largest network, and random networks with the options that are open so far.

    This is progressive shrinking (once-for-all, Cai et al., ICLR 2020, section 3.3): at first the
    largest network is trained alone, then kernel sizes and resolutions are opened, then depths,
    then widths and expansion ratios; options stay open. The lengths of the phases are about in the
    proportions of the paper's schedule. Phases that open nothing in this space are left out. There
    are two departures: the teacher is the largest network as it is in this step, not a frozen one;
    and resolutions wait for their phase as well.

    Args:
        space: Space of the networks.
        rng: Source of randomness.
        random_subnets: Number of random networks less one; none are drawn before an option is
            opened.
        share: Share of the training that is done, in [0, 1].
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
    """Return the options of each choice that may be drawn; a later share never has fewer.

    Args:
        space: Space of the choices.
        share: Share of the training that is done, in [0, 1].
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
    """Return the number of open options; ``begun`` is the phase's progress, negative before it."""
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


PLUGINS = (
    SamplingPlugin(
        "sampling rule",
        "progressive",
        progressive,
        "Progressive shrinking: the largest network first, then smaller options (once-for-all)",
        beyond_random=2,
    ),
)
