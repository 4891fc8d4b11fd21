"""How much faster are the networks of a planned job than published ones, at equal accuracy?

For each seed, the job of `job.toml` is run. Scaled published networks are each trained alone on one
core, for as long as the whole job took and with the same recipe. All are timed against each other
on every target, and each counts on its best target.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.alone import for_seconds, train_alone
from experiments.cifar10.rivals import RIVALS
from experiments.equal_accuracy import compared
from experiments.record import Row
from experiments.setting import Setting, cores, main
from experiments.sides import TARGETS, measured_rows, of_job, usable
from hwnas.deploy import Target

HWNAS, PUBLISHED = "hwnas", "published"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rivals", type=int, default=len(RIVALS), help="number of rivals, from the last"
    )
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="NAME")


def work(arguments: argparse.Namespace) -> None:
    targets = usable(arguments.targets)
    config = {
        "rivals": [repr(rival) for rival in RIVALS[-arguments.rivals :]],
        "targets": [target.name for target in targets],
    }
    setting = Setting(arguments, config)
    for seed in setting.seeds:
        rows = [row for row in setting.observations.rows if row.seed == seed]
        if not rows:
            rows = observe(setting, targets, seed, arguments.rivals)
            setting.observations.put(rows)
        seconds = [row for row in rows if row.metric == "seconds"]
        setting.answer([*compared(rows, HWNAS, PUBLISHED, seed), *seconds])
    setting.show()


def observe(setting: Setting, targets: Sequence[Target], seed: int, count: int) -> list[Row]:
    """Make the networks of both sides, resuming interrupted work, and time them together."""
    folder = setting.work / f"seed-{seed}"
    print(f"seed {seed}: running the whole job", flush=True)
    found, run_inputs, seconds = of_job(HWNAS, setting.experiment(seed), folder / HWNAS)
    about = run_inputs.data.image_shape[2], run_inputs.task.outputs
    rivals = [rival.alone(*about) for rival in RIVALS[-count:]]
    training = for_seconds(run_inputs, seconds)
    with cores(run_inputs.recipe) as at_once:
        alone, _ = train_alone(
            PUBLISHED, rivals, run_inputs, [training], folder / PUBLISHED, at_once
        )
    print(f"seed {seed}: timing {len(found) + len(alone)} networks", flush=True)
    return [
        *measured_rows([*found, *alone], targets, run_inputs, seed),
        Row("seconds", f"{HWNAS}, and each of {PUBLISHED}", seed, seconds, "s", 1),
    ]


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, recipe=here / "job.toml")
