"""Is a joint search over networks, number formats and runtimes better than converting afterwards?

For each data set and seed there are two jobs with equal minutes. One searches for the best of
several targets in several number formats; its finalists ship in one format each. The other one
searches in fp32, and all of its finalists are converted to every format afterwards. The files of
both sides are timed together, and each counts on the best target in its format.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.equal_accuracy import compared
from experiments.formats import in_formats, timed_in_formats
from experiments.record import Row
from experiments.setting import Setting, main
from experiments.sides import Network, of_bundle, of_job, usable
from hwnas.deploy import Target
from hwnas.plugin import resolve
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.goal import SearchGoal

JOINT, AFTERWARDS = "joint", "afterwards"
CASES = ("cifar10", "fashion_mnist")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="NAME")


def work(arguments: argparse.Namespace) -> None:
    for case in arguments.cases:
        resolve("case", case, dict.fromkeys(CASES))
    for case in arguments.cases:
        given = vars(arguments)
        own = {"recipe": arguments.recipe / f"{case}.toml", "work": arguments.work / case}
        setting = Setting(argparse.Namespace(**{**given, **own}), {"case": case})
        for seed in setting.seeds:
            rows = [row for row in setting.observations.rows if row.seed == seed]
            if not rows:
                rows = observe(setting, case, seed)
                setting.observations.put(rows)
            about = f"{case} {JOINT} / {AFTERWARDS}"
            seconds = [row for row in rows if row.metric == "seconds"]
            setting.answer([*compared(rows, JOINT, AFTERWARDS, seed, about), *seconds])
        setting.show()


def observe(setting: Setting, case: str, seed: int) -> list[Row]:
    """Run both jobs, resuming interrupted work, and time all files together."""
    folder = setting.work / f"seed-{seed}"
    goal = SearchGoal(setting.recipe(seed).objective)
    targets = usable(goal.targets)
    plain = [target.name for target in targets if target.format == "fp32"]
    jobs = {
        JOINT: setting.experiment(seed),
        AFTERWARDS: setting.experiment(seed, [f"objective.1.targets={plain}"]),
    }
    files: list[Network] = []
    rows = []
    for side, job in jobs.items():
        print(f"{case}, seed {seed}: running the job {side}", flush=True)
        _, run_inputs, seconds = of_job(side, job, folder / side)
        rows.append(Row("seconds", f"{case} {side}", seed, seconds, "s", 1))
        for bundle in read_bundles(folder / side / "bundles").values():
            formats = goal.number_formats
            if side == JOINT:
                formats = (Target.parse(bundle.measurements[0].target).format,)
            network = of_bundle(side, bundle, run_inputs)
            shape = run_inputs.space.input_shape(bundle.architecture)
            files += in_formats(network, formats, shape, run_inputs, folder / "files")
    print(f"{case}, seed {seed}: timing {len(files)} files", flush=True)
    return [*rows, *timed_in_formats(files, targets, run_inputs, seed)]


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, recipe=here)
