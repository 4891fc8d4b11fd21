"""Is a joint search over networks, number formats and runtimes better than converting afterwards?

For each data set and seed there are two jobs with equal minutes. One searches for the best of
several targets in several number formats; its finalists ship in one format each. The other one
searches in fp32, and all of its finalists are converted to every format afterwards. The files of
both sides are timed together, and each counts on the best target in its format.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.equal_accuracy import compared
from experiments.record import Row
from experiments.setting import Setting, main
from experiments.sides import Network, of_bundle, of_job, rows_of, tested_on, usable
from hwnas.deploy import Bundle, Target, measure
from hwnas.plugin import resolve
from hwnas.search.evaluation.converted import converted_file
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.goal import SearchGoal
from hwnas.stages.run_inputs import RunInputs

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
            files += in_formats(side, bundle, formats, run_inputs, folder / "files")
    print(f"{case}, seed {seed}: timing {len(files)} files", flush=True)
    return [*rows, *timed(files, targets, run_inputs, seed)]


def in_formats(
    side: str, bundle: Bundle, formats: Sequence[str], run_inputs: RunInputs, folder: Path
) -> Iterator[Network]:
    """Yield the network of a bundle as a file in each number format, not scored yet.

    The id of each is the number format, then the id of the architecture.
    """
    network = of_bundle(side, bundle, run_inputs)
    shape = run_inputs.space.input_shape(bundle.architecture)
    folder.mkdir(parents=True, exist_ok=True)
    for number_format in formats:
        file = folder / f"{side}-{number_format}-{network.id}.onnx"
        shutil.copy(bundle.onnx_file, file)
        if number_format != "fp32":
            preprocessing = run_inputs.task.preprocessing.at(*shape[1:])
            file = converted_file(file, number_format, run_inputs.data.train, preprocessing)
        yield replace(network, id=f"{number_format} {network.id}", onnx=file)


def timed(
    files: Sequence[Network],
    targets: Sequence[Target],
    run_inputs: RunInputs,
    seed: int,
) -> list[Row]:
    """Time all files on the targets in their formats, and score each as it runs on its best one."""
    format_of = {file.subject: file.id.split()[0] for file in files}
    found = {
        target: measure(
            {f.subject: f.onnx for f in files if format_of[f.subject] == target.format}, target
        )
        for target in targets
        if target.format in format_of.values()
    }
    rows = []
    for file in files:
        measured = {t: each[file.subject] for t, each in found.items() if file.subject in each}
        best = min(measured, key=lambda target: measured[target].latency_ms)
        scored = tested_on(file, best, run_inputs)
        rows += rows_of(scored, measured[best], len(run_inputs.data.test), seed)
    return rows


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, recipe=here)
