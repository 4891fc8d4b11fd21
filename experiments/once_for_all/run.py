"""How fast does a supernet of once-for-all's shape train, compared with once-for-all's own code?

Both supernets make the same steps, interleaved: the same networks of OFAMobileNetV3 of width 1.0,
images of 64 pixels, loss and optimiser. Two more measurements follow: the cost of activating a
network, and the time of a training step of an active network over that of the same network on its
own.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from experiments.command import run_command
from experiments.once_for_all.parts import activations, step_ratios
from experiments.once_for_all.rival import check_same, our_space, their_supernet
from experiments.once_for_all.steps import SIDES, Batch, Timed, stepper
from experiments.readme_table import markdown
from experiments.record import Results, Row
from hwnas.errors import ConfigError
from hwnas.search_spaces import MobileNetSpace

FOLDER = Path(__file__).parent
STEPS = {"uniform": 4, "sandwich": 1}
"""Number of steps of a round, by sampling rule."""
_WARM_UP = 2
_COMPARED = (("hwnas", "ofa"), ("hwnas-contiguous", "ofa"), ("hwnas", "ofa-channels-last"))
_CHECKED = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.once_for_all.run", description=__doc__
    )
    parser.add_argument("--ofa", type=Path, help="folder where the package ofa is installed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument("--rounds", type=int, default=12, help="interleaved rounds of each side")
    parser.add_argument("--batch", type=int, default=64, help="images in a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--networks", type=int, default=6, help="random networks, in addition to two extremes"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the recorded rows")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    for name in ("rounds", "threads", "networks"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"--{name} is {getattr(arguments, name)}; expected at least 1")
    if arguments.batch < 2:
        raise ConfigError("--batch is less than 2, but normalisation needs two images")
    names = ("rounds", "batch", "threads", "networks")
    config = {name: getattr(arguments, name) for name in names}
    observed = Results(arguments.out / "observations.jsonl", config)
    answers = Results(arguments.out / "results.jsonl", config)
    torch.set_num_threads(arguments.threads)
    space = our_space()
    for seed in arguments.seeds:
        torch.manual_seed(seed)
        theirs = their_supernet(arguments.ofa)
        check_sizes(space, theirs, seed)
        batch = Batch.drawn(arguments.batch, seed)
        for rule in STEPS:
            if observed.find("cpu_seconds", f"{rule} {SIDES[-1]}", seed) is None:
                print(f"seed {seed}: {rule} steps", flush=True)
                observed.put(race(space, arguments, rule, batch, seed))
        if observed.find("activation", "ofa sample", seed) is None:
            print(f"seed {seed}: activation", flush=True)
            observed.put(activations(space, theirs, seed))
        step_ratios(observed, space, theirs, batch, arguments.networks, arguments.threads, seed)
        answers.put(summary([row for row in observed.rows if row.seed == seed], seed))
    print(markdown(answers.rows))


def check_sizes(space: MobileNetSpace, theirs: Any, seed: int) -> None:
    """Check that both spaces have networks of equal size: the two extremes and some random ones."""
    rng = random.Random(seed)
    drawn = [space.sample(rng) for _ in range(_CHECKED)]
    for network in (space.largest(), space.smallest(), *drawn):
        check_same(space, network, theirs)
    theirs.set_max_net()


def race(
    space: MobileNetSpace, arguments: argparse.Namespace, rule: str, batch: Batch, seed: int
) -> list[Row]:
    """Time interleaved rounds of all sides, each side with the same networks."""
    sides = {side: stepper(side, space, their_supernet(arguments.ofa), batch) for side in SIDES}
    for step in sides.values():
        for turn in range(_WARM_UP):
            step(rule, f"{seed}-warm-up-{turn}")
    rounds: dict[str, list[Timed]] = {side: [] for side in sides}
    for turn in range(arguments.rounds):
        keys = [f"{seed}-{turn}-{i}" for i in range(STEPS[rule])]
        order = list(sides.items())
        for side, step in order if turn % 2 == 0 else reversed(order):
            rounds[side].append(Timed.of(step, rule, keys))
    images = STEPS[rule] * len(batch.images)
    return [
        Row(
            f"{clock}_seconds",
            f"{rule} {side}",
            seed,
            median(getattr(timed, clock) for timed in timings),
            "s",
            len(timings),
            details={"rounds": [getattr(t, clock) for t in timings], "images": images},
        )
        for clock in ("wall", "cpu")
        for side, timings in rounds.items()
    ]


def summary(rows: Sequence[Row], seed: int) -> list[Row]:
    """Return speeds, our speed-ups, activation times, and step ratios of supernet to subnet."""
    found = {(row.metric, row.subject): row for row in rows}
    answers = []
    for rule in STEPS:
        for side in SIDES:
            row = found["wall_seconds", f"{rule} {side}"]
            speeds = [row.details["images"] / seconds for seconds in row.details["rounds"]]
            answers.append(_over("images a second", row.subject, seed, speeds, ""))
        for ours, theirs in _COMPARED:
            for clock in ("wall", "cpu"):
                pair = (found[f"{clock}_seconds", f"{rule} {side}"] for side in (theirs, ours))
                rounds = zip(*(row.details["rounds"] for row in pair), strict=True)
                ratios = [slow / fast for slow, fast in rounds]
                name = f"times as fast, {clock} clock"
                answers.append(_over(name, f"{rule} {ours}/{theirs}", seed, ratios, "ratio"))
    answers += [row for row in rows if row.metric == "activation"]
    for side in ("hwnas", "ofa"):
        for clock in ("wall", "cpu"):
            metric = f"{clock}_step_ratio"
            some = [
                row.value
                for (name, subject), row in found.items()
                if name == metric and subject.startswith(f"{side} ") and row.value is not None
            ]
            answers.append(_over(f"step ratio, {clock} clock", side, seed, some, "ratio"))
    return answers


def _over(metric: str, subject: str, seed: int, values: Sequence[float], unit: str) -> Row:
    spread = {"least": min(values), "most": max(values)}
    return Row(metric, subject, seed, median(values), unit, len(values), spread)


if __name__ == "__main__":
    main()
