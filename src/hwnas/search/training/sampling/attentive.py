"""Attentive sampling: selection of supernet subnets among candidates of about equal MACs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hwnas.errors import ConfigError
from hwnas.search.training.sampling.rule import SamplingPlugin
from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["PLUGINS", "attentive_best", "attentive_worst", "knows_macs"]

_POOL = 64
_CANDIDATES = 3

_Losses = Callable[[Sequence[Architecture]], list[float]]


def attentive_best(
    space: SearchSpace, rng: random.Random, random_subnets: int, losses: _Losses
) -> list[Architecture]:
    """Draw a sandwich whose random networks are each the best of three (AttentiveNAS's BestUp).

    AttentiveNAS (Wang et al., CVPR 2021, section 3) draws MACs, then candidates of about these
    MACs, and trains the candidate with the highest expected accuracy. Here the candidates are a
    random network and the two of 63 other random networks that are nearest to it in MACs. The
    candidate with the lowest loss on the images of the step is trained. (The paper also tries the
    loss, and prefers a predictor that was trained beforehand.) Each random network therefore costs
    three additional forward passes.
    """
    return _sandwich(space, rng, random_subnets, losses, min)


def attentive_worst(
    space: SearchSpace, rng: random.Random, random_subnets: int, losses: _Losses
) -> list[Architecture]:
    """Draw as `attentive_best`, but train the candidate with the highest loss (WorstUp)."""
    return _sandwich(space, rng, random_subnets, losses, max)


def knows_macs(space: SearchSpace) -> None:
    """Check that a space knows the MACs of its networks without tracing each one.

    Raises:
        ConfigError: The space does not know them.
    """
    if not space.counted(np.zeros((1, len(space.choices)), dtype=np.int64)):
        raise ConfigError(
            f"attentive sampling compares networks of equal MACs, and space {space.name} does not "
            "know them without tracing each network; use train.sampling = 'sandwich', or implement "
            "SearchSpace.parts"
        )


def _sandwich(
    space: SearchSpace,
    rng: random.Random,
    random_subnets: int,
    losses: _Losses,
    pick: Callable[..., int],
) -> list[Architecture]:
    chosen = []
    for _ in range(random_subnets):
        candidates = _of_equal_macs(space, rng)
        found = losses(candidates)
        chosen.append(candidates[pick(range(len(candidates)), key=found.__getitem__)])
    return [space.largest(), *chosen, space.smallest()]


def _of_equal_macs(space: SearchSpace, rng: random.Random) -> list[Architecture]:
    generator = np.random.default_rng(rng.getrandbits(64))
    options = [len(choice.options) for choice in space.choices]
    drawn = generator.integers(options, size=(_POOL, len(options)))
    codes: npt.NDArray[np.int64] = space.canonical(drawn)
    macs = space.counted(codes)["macs"]
    nearest = np.argsort(np.abs(macs - macs[0]), kind="stable")[:_CANDIDATES]
    return [space.decode(codes[row]) for row in nearest]


PLUGINS = (
    SamplingPlugin(
        "sampling rule",
        "attentive-best",
        attentive_best,
        "Sandwich of the best of three networks (AttentiveNAS)",
        beyond_random=2,
        check=knows_macs,
    ),
    SamplingPlugin(
        "sampling rule",
        "attentive-worst",
        attentive_worst,
        "Sandwich of the worst of three networks (AttentiveNAS)",
        beyond_random=2,
        check=knows_macs,
    ),
)
