"""How much faster are the networks of a search than published ones, at equal accuracy?

Per seed: the whole job for each of two spaces; published networks, scaled, that share the seconds
which the longer of the two took, from calibration to fine-tuned finalists, and are trained by the
same recipe. All are timed against each other on every target, and each counts at its best.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.alone import seconds_each, train_alone
from experiments.cifar10.rivals import RIVALS
from experiments.command import run_command
from experiments.configuration import recipe_values
from experiments.equal_accuracy import compared
from experiments.readme_table import markdown
from experiments.record import Results, Row
from experiments.setting import cores
from experiments.sides import Network, measured_rows, of_bundle
from hwnas.deploy import RUNTIMES, Target
from hwnas.errors import ConfigError
from hwnas.experiment import Experiment
from hwnas.run_folder import RunFolder
from hwnas.stages.finalists import read_bundles
from hwnas.stages.job import Ingredients

FOLDER = Path(__file__).parent
SPACES, PUBLISHED = ("mobilenet", "hybrid"), "published"
TARGETS = (
    "cpu-onnxruntime-fp32-b1-t1",
    "cpu-openvino-fp32-b1-t1",
    "cpu-openvino-bf16-b1-t1",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.cifar10.run", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N")
    parser.add_argument("--rivals", type=int, default=len(RIVALS), help="only the last so many")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="change the recipes")  # fmt: skip
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "cifar10"))
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    targets = usable(arguments.targets)
    config = {
        "recipes": [recipe_values(experiment(s, 0, arguments).recipe) for s in SPACES],
        "rivals": [repr(rival) for rival in RIVALS[-arguments.rivals :]],
        "targets": [target.name for target in targets],
    }
    answers, observations = (
        Results(arguments.out / f"{name}.jsonl", config) for name in ("results", "observations")
    )
    for seed in arguments.seeds:
        rows = [row for row in observations.rows if row.seed == seed]
        if not rows:
            rows = observe(seed, targets, arguments)
            observations.put(rows)
        answers.put(judge(rows, seed))
    print(markdown(answers.rows))


def usable(names: Sequence[str]) -> list[Target]:
    """Refuse a target before an hour of training."""
    targets = [Target.parse(name) for name in names]
    for target in targets:
        if reason := RUNTIMES[target.device.runtime].unavailable():
            raise ConfigError(f"--targets {target.name}: {reason}")
    return targets


def experiment(space: str, seed: int, arguments: argparse.Namespace) -> Experiment:
    return Experiment.load(FOLDER / f"{space}.toml", [*arguments.set, f"seed={seed}"])


def observe(seed: int, targets: Sequence[Target], arguments: argparse.Namespace) -> list[Row]:
    """Make the networks of all sides, going on where that was stopped, and time them together."""
    folder = arguments.work / f"seed-{seed}"
    networks, spent = [], {}
    for space in SPACES:
        found, ingredients, spent[space] = searched(space, seed, folder, arguments)
        networks += found
    about = ingredients.data.image_shape[2], ingredients.task.outputs
    rivals = [rival.alone(*about) for rival in RIVALS[-arguments.rivals :]]
    with cores(ingredients.recipe) as at_once:
        share = seconds_each(max(spent.values()), len(rivals), at_once)
        training = replace(ingredients.recipe.train, epochs=None, budget_minutes=share / 60)
        found, spent[PUBLISHED] = train_alone(
            PUBLISHED, rivals, ingredients, [training], folder / PUBLISHED, at_once
        )
    print(f"seed {seed}: timing {len(networks) + len(found)} networks", flush=True)
    return [
        *measured_rows([*networks, *found], targets, ingredients, seed),
        *(Row("seconds", side, seed, value, "s", 1) for side, value in spent.items()),
    ]


def searched(
    space: str, seed: int, folder: Path, arguments: argparse.Namespace
) -> tuple[list[Network], Ingredients, float]:
    """The finalists of a space, and the seconds of all stages of its run."""
    job, run = experiment(space, seed, arguments), folder / space
    print(f"seed {seed}: the whole job for {space}", flush=True)
    job.run(run)
    ingredients = Ingredients.prepare(job.recipe, job.folder, run / "cache")
    with RunFolder.open(run) as opened:
        seconds = sum(stage.wall_s for stage in opened.stages.values())
    bundles = read_bundles(run / "bundles").values()
    return [of_bundle(space, bundle, ingredients) for bundle in bundles], ingredients, seconds


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """Each space against the published networks, and the one that validation images prefer."""
    answers = {space: compared(rows, space, PUBLISHED, seed) for space in SPACES}
    best = max(SPACES, key=lambda space: on_validation(rows, space, seed))
    chosen = compared(rows, best, PUBLISHED, seed, f"best / {PUBLISHED}")
    chosen = [replace(row, details={**row.details, "space": best}) for row in chosen]
    seconds = [row for row in rows if row.metric == "seconds"]
    return [*(row for found in answers.values() for row in found), *chosen, *seconds]


def on_validation(rows: Sequence[Row], space: str, seed: int) -> float:
    """The hypervolume ratio with validation errors in place of test errors."""
    errors = [row for row in rows if row.metric == "test_error"]
    swapped = [replace(r, value=1 - float(r.details["validation_accuracy"])) for r in errors]
    found = compared(swapped, space, PUBLISHED, seed)
    return next(float(r.value or 0) for r in found if r.metric == "hypervolume_ratio")


if __name__ == "__main__":
    main()
