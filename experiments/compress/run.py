"""Is compressing a trained model by a search within it better than pruning and quantising it?

For each model and seed, the model is trained for a while; then `hwnas compress` searches within it.
The rivals, which start from the same weights: the model as it is, in each number format; and the
model pruned to several sizes by torch-pruning, fine-tuned for the minutes of the job with its
settings and teacher, and converted to each number format.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.alone import Alone, for_seconds, seconds_each, train_alone, weights_of
from experiments.by_model import add_model_options, answer_by_model
from experiments.compress.models import LEARNING_RATES, MODELS
from experiments.compress.pruning import pruned
from experiments.equal_accuracy import compared
from experiments.formats import in_formats, timed_in_formats
from experiments.record import Row
from experiments.setting import Setting, cores, main
from experiments.sides import Network, of_bundle, of_job, usable
from hwnas.deploy import Bundle, Target
from hwnas.search.training import teacher_of
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.goal import SearchGoal
from hwnas.stages.run_inputs import RunInputs

COMPRESS, GIVEN, PRUNED = "compress", "given", "pruned"
ANY = "mobilenet"  # stands for all models in the configuration


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, MODELS)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.25, 0.4, 0.55, 0.7])


def work(arguments: argparse.Namespace) -> None:
    config = {name: getattr(arguments, name) for name in ("ratios", "pretraining")}
    config["learning_rates"] = LEARNING_RATES
    setting = Setting(arguments, config, [named(ANY)])
    answer_by_model(
        *(setting, arguments.models, MODELS, COMPRESS),
        lambda models, seed: pretrain(setting, models, seed, arguments.pretraining),
        lambda model, seed: observe(setting, model, seed, arguments.ratios),
        judge,
    )


def named(model: str) -> str:
    """Return the value of ``space.model`` that the recipe leaves open."""
    return f'space.model="experiments.compress.models:{model}"'


def pretrain(setting: Setting, models: Sequence[str], seed: int, minutes: float) -> None:
    """Train the models, each on one core; models that are trained already are skipped."""
    run_inputs, folder = setting.run_inputs(seed), setting.work / f"seed-{seed}" / "whole"
    shape, outputs = run_inputs.data.image_shape, run_inputs.task.outputs
    whole = [
        Alone(
            model,
            partial(MODELS[model], shape, outputs),
            (shape[2], *shape[:2]),
            {"model": model},
            {"learning_rate": LEARNING_RATES[model], "flip": True, "shift_pixels": 2},
        )
        for model in models
    ]
    with cores(run_inputs.recipe) as at_once:
        config = for_seconds(run_inputs, 60 * minutes)
        train_alone("whole", whole, run_inputs, [config], folder, at_once)


def observe(setting: Setting, model: str, seed: int, ratios: Sequence[float]) -> list[Row]:
    """Make the networks of all sides, resuming interrupted work, and time their files together."""
    folder = setting.work / f"seed-{seed}" / model
    weights = weights_of(folder.with_name("whole"), model)
    job = setting.experiment(seed, [named(model), f'space.weights="{weights.absolute()}"'])
    print(f"seed {seed}: running the whole job for {model}", flush=True)
    _, run_inputs, seconds = of_job(f"{model} {COMPRESS}", job, folder / "run")
    goal = SearchGoal(run_inputs.recipe.objective)
    targets, formats = usable(goal.targets), goal.number_formats
    shape = run_inputs.space.input_shape(run_inputs.space.largest())

    files: list[Network] = []
    for bundle in read_bundles(folder / "run" / "bundles").values():
        network = of_bundle(f"{model} {COMPRESS}", bundle, run_inputs)
        own = Target.parse(bundle.measurements[0].target).format
        files += in_formats(network, [own], shape, run_inputs, folder / "files")
    given = of_bundle(f"{model} {GIVEN}", Bundle.load(folder / "run" / "reference"), run_inputs)
    for network in [given, *rivals(model, run_inputs, seconds, ratios, folder / PRUNED)]:
        files += in_formats(network, formats, shape, run_inputs, folder / "files")
    print(f"seed {seed}: timing {len(files)} files of {model}", flush=True)
    return [
        Row("seconds", f"{model} {COMPRESS}, and all {PRUNED}", seed, seconds, "s", 1),
        *timed_in_formats(files, targets, run_inputs, seed),
    ]


def rivals(
    model: str, run_inputs: RunInputs, seconds: float, ratios: Sequence[float], folder: Path
) -> list[Network]:
    """Prune the model to several sizes; fine-tune each for an equal share of the job's seconds."""
    recipe, space = run_inputs.recipe, run_inputs.space
    tuning, shape = recipe.fine_tuning, space.input_shape(space.largest())
    assert tuning is not None
    teacher = teacher_of(space, tuning)
    assert teacher is not None
    wanted = [
        Alone(
            f"{ratio:g}-removed",
            partial(pruned, teacher.network, shape, ratio),
            shape,
            {"model": model, "removed": ratio},
        )
        for ratio in ratios
    ]
    prepared = teacher.prepared(tuning.teacher_sees, run_inputs.task, run_inputs.data.train)
    with cores(recipe) as at_once:
        share = seconds_each(seconds, len(wanted), at_once)
        config = replace(tuning, epochs=None, budget_minutes=share / 60)
        trained, _ = train_alone(
            *(f"{model} {PRUNED}", wanted, run_inputs, [config], folder, at_once), teacher=prepared
        )
    return trained


def judge(rows: Sequence[Row], model: str, seed: int) -> list[Row]:
    """Compare the compressed model with both rivals."""
    ours = f"{model} {COMPRESS}"
    found = [
        row
        for rival in (GIVEN, PRUNED)
        for row in compared(rows, ours, f"{model} {rival}", seed, f"{ours} / {rival}")
    ]
    return [*found, *(row for row in rows if row.metric == "seconds")]


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, recipe=here / "recipe.toml")
