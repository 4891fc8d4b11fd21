"""Are networks that keep SimpleNet's design rules better than random ones of equal cost?

From the space of plain networks, random networks are drawn. For each, one that keeps the rules is
drawn with nearly as many multiply-accumulates. All, and the published network, are trained alone
for equal time.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
from torch import nn

from experiments.alone import Alone, train_alone
from experiments.readme_table import markdown
from experiments.record import Row
from experiments.setting import Setting, cores, main
from experiments.sides import Network
from hwnas.search.objectives.front import hypervolume
from hwnas.search_spaces import Architecture, SimpleNetSpace, simplenet
from hwnas.stages.run_inputs import RunInputs

FREE, RULED, PUBLISHED = "free", "ruled", "simplenet-310k"
PAIRS = 8
_DRAWN = 4000
_MARGIN = 0.1  # of the range of both sides, by which the reference point is worse than all
_LEAST_SHARE = 0.5  # of the widest group's width that the narrowest has, for balance


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=2.0, metavar="M", help="of each network")
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N")


def work(arguments: argparse.Namespace) -> None:
    minutes, pairs = arguments.minutes, arguments.pairs
    setting = Setting(arguments, {"minutes": minutes, "pairs": pairs, "balance": _LEAST_SHARE})
    for seed in setting.seeds:
        if setting.answers.find("error", PUBLISHED, seed) is None:
            run_inputs = setting.run_inputs(seed)
            folder = setting.work / f"seed-{seed}"
            networks = trained(run_inputs, pairs, minutes, seed, folder)
            setting.observations.put(observations(networks, len(run_inputs.data.test), seed))
            setting.answer(answers(networks, len(run_inputs.data.test), seed))
    print(markdown(setting.answers.rows))


def keeps_rules(space: SimpleNetSpace, architecture: Architecture) -> bool:
    """Return whether a network keeps the rules of SimpleNet's authors (sections 3.1 and 3.2).

    Homogeneous groups: the layers of a group have one width. Gradual expansion: later groups have
    no smaller share of their channels than earlier ones. Balance: the narrowest group has at least
    half the share of the widest.
    """
    values, shares = space.values(architecture), []
    for g, group in enumerate(space.config.groups):
        widths = {
            width
            for b in range(len(group.channels))
            if (width := values[f"group{g}.layer{b}.width"]) is not None
        }
        if len(widths) > 1:
            return False
        shares += widths
    return shares == sorted(shares) and min(shares) >= _LEAST_SHARE * max(shares)


def ruled(space: SimpleNetSpace, rng: random.Random) -> Architecture:
    """Draw a network that keeps the rules."""
    while True:
        values = space.sample(rng).as_dict()
        low = rng.choice(sorted(space.config.groups[0].width))
        for g, group in enumerate(space.config.groups):
            low = rng.choice([share for share in group.width if share >= low])
            values |= {
                name: low
                for name in values
                if name.startswith(f"group{g}.layer") and name.endswith(".width")
            }
        found = space.architecture(values)
        if keeps_rules(space, found):
            return found


def pairs_of(
    space: SimpleNetSpace, pairs: int, seed: int
) -> list[tuple[Architecture, Architecture]]:
    """Return pairs of a random network and one that keeps the rules, at equal cost."""
    rng = random.Random(seed)
    offered = list({(each := ruled(space, rng)).id: each for _ in range(_DRAWN)}.values())
    costs = space.counted(np.array([space.encode(each) for each in offered]))["macs"]
    found: list[tuple[Architecture, Architecture]] = []
    while len(found) < pairs:
        free = space.sample(rng)
        if keeps_rules(space, free):
            continue
        macs = space.counted(space.encode(free)[None])["macs"][0]
        nearest = offered[int(np.abs(np.log(costs / macs)).argmin())]
        if nearest not in [kept for _, kept in found]:
            found.append((free, nearest))
    return found


def trained(
    run_inputs: RunInputs, pairs: int, minutes: float, seed: int, folder: Path
) -> list[Network]:
    """Return the trained networks of all pairs, and the published one."""
    shape, outputs = run_inputs.data.image_shape, run_inputs.task.outputs
    space = simplenet(shape, outputs, preset="slim", resolution=(max(shape[:2]),))
    published = simplenet(shape, outputs, preset=PUBLISHED)
    wanted = [alone(published, published.largest(), PUBLISHED)]
    for number, (free, kept) in enumerate(pairs_of(space, pairs, seed)):
        wanted += [alone(space, free, f"{FREE}-{number}"), alone(space, kept, f"{RULED}-{number}")]
    training = replace(run_inputs.recipe.train, epochs=None, budget_minutes=minutes)
    with cores(run_inputs.recipe) as at_once:
        networks, _ = train_alone("plain", wanted, run_inputs, [training], folder, at_once)
    return networks


def alone(space: SimpleNetSpace, architecture: Architecture, name: str) -> Alone:
    shape = space.input_shape(architecture)
    return Alone(name, partial(_built, space, architecture), shape, architecture.to_json())


def _built(space: SimpleNetSpace, architecture: Architecture) -> nn.Module:
    return space.build(architecture)


def observations(networks: Sequence[Network], n: int, seed: int) -> list[Row]:
    """Return the test error of each network."""
    return [
        Row("test_error", each.id, seed, 1 - each.test, "fraction", n,
            details={"macs": each.macs, "params": each.params, "architecture": each.architecture})
        for each in networks
    ]  # fmt: skip


def answers(networks: Sequence[Network], n: int, seed: int) -> list[Row]:
    """Compare networks of equal cost, and the fronts of error and multiply-accumulates."""
    by_name = {each.id: each for each in networks}
    sides = {
        side: [each for name, each in by_name.items() if name.startswith(f"{side}-")]
        for side in (FREE, RULED)
    }
    gains = [kept.test - free.test for free, kept in zip(sides[FREE], sides[RULED], strict=True)]
    points = {
        side: np.array([[1 - each.test, np.log(each.macs)] for each in some])
        for side, some in sides.items()
    }
    every = np.vstack([*points.values()])
    worst = every.max(0) + _MARGIN * np.ptp(every, axis=0)
    volumes = {side: hypervolume(each, worst) for side, each in points.items()}
    pairs = len(gains)
    error = {side: 1 - fmean(each.test for each in some) for side, some in sides.items()}
    error[PUBLISHED] = 1 - by_name[PUBLISHED].test
    return [
        *(Row("error", name, seed, value, "fraction", n) for name, value in error.items()),
        Row("accuracy_gained", f"{RULED}/{FREE}", seed, fmean(gains), "fraction", pairs),
        Row("pairs_won", f"{RULED}/{FREE}", seed, fmean(g > 0 for g in gains), "ratio", pairs),
        Row("hypervolume", f"{RULED}/{FREE}", seed, volumes[RULED] / volumes[FREE], "ratio", pairs),
    ]


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, options)
