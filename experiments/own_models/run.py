"""Is a model made elastic better than the same model scaled by width, after equal minutes?

For each model and seed, the model is trained for a while; then a whole job finds faster networks
within it. The baselines are the model at several widths, trained alone: from scratch, for the
minutes of both; or initialised with slices of the trained weights, for the minutes of the job.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.alone import Alone, for_seconds, seconds_each, train_alone, weights_of
from experiments.by_model import add_model_options, answer_by_model
from experiments.equal_accuracy import compared
from experiments.own_models.models import LEARNING_RATES, MODELS
from experiments.record import Row
from experiments.setting import Setting, cores, main
from experiments.sides import Network, measured_rows, of_job
from hwnas.deploy import Target
from hwnas.recipe import Recipe
from hwnas.search_spaces import SearchSpace
from hwnas.stages.goal import SearchGoal
from hwnas.stages.run_inputs import RunInputs

ELASTIC, SCRATCH, SLICED = "elastic", "scratch", "sliced"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, MODELS)
    parser.add_argument("--rivals", nargs="+", choices=(SCRATCH, SLICED), default=[SCRATCH])
    parser.add_argument("--widths", type=float, nargs="+", default=[0.25, 0.5, 0.75, 1.0])


def work(arguments: argparse.Namespace) -> None:
    config = {name: getattr(arguments, name) for name in ("widths", "pretraining")}
    config["learning_rates"] = LEARNING_RATES
    setting = Setting(arguments, config, open_ends("cnn"))
    answer_by_model(
        *(setting, arguments.models, MODELS, ELASTIC),
        lambda models, seed: pretrain(setting, models, seed, arguments),
        lambda model, seed: observe(setting, model, seed, arguments),
        judge,
        lambda model, seed: has_all(setting, model, seed, arguments.rivals),
    )


def open_ends(model: str) -> list[str]:
    """Return the values that the recipe leaves open: the model and its learning rates."""
    rate = LEARNING_RATES[model]
    return [
        f'space.model="experiments.own_models.models:{model}"',
        f"train.learning_rate={rate}",
        f"deploy.finetune_learning_rate={rate}",
    ]


def has_all(setting: Setting, model: str, seed: int, rivals: Sequence[str]) -> bool:
    """Return whether all sides of a model are observed."""
    rows = setting.observed(model, seed)
    found = {row.details["side"] for row in rows if row.metric == "test_error"}
    return found >= {f"{model} {side}" for side in (ELASTIC, *rivals)}


def pretrain(
    setting: Setting, models: Sequence[str], seed: int, arguments: argparse.Namespace
) -> None:
    """Train the whole models, each on one core; models that are trained already are skipped."""
    run_inputs, folder = setting.run_inputs(seed), setting.work / f"seed-{seed}" / "whole"
    config = for_seconds(run_inputs, 60 * arguments.pretraining)
    whole = [replace(scaled(model, 1.0, run_inputs), name=model) for model in models]
    with cores(run_inputs.recipe) as at_once:
        train_alone("whole", whole, run_inputs, [config], folder, at_once)


def scaled(model: str, width: float, run_inputs: RunInputs) -> Alone:
    """Return a model at a width, with random weights."""
    shape = run_inputs.data.image_shape
    build = partial(MODELS[model], shape, run_inputs.task.outputs, width)
    about = {"model": model, "width": width}
    rate = {"learning_rate": LEARNING_RATES[model]}
    return Alone(f"width-{width:g}", build, (shape[2], *shape[:2]), about, rate)


def sliced(width: float, space: SearchSpace) -> Alone:
    """Return the trained model cut to its most important channels, with all blocks."""
    values = space.largest().as_dict()
    for choice in space.choices:
        if not choice.name.endswith(".depth"):
            wanted = width * float(choice.options[-1])
            values[choice.name] = min(choice.options, key=lambda o: abs(float(o) - wanted))
    network = space.architecture(values)
    shape = space.input_shape(network)
    return Alone(f"width-{width:g}", partial(space.build, network), shape, network.to_json())


def observe(setting: Setting, model: str, seed: int, arguments: argparse.Namespace) -> list[Row]:
    """Make the networks of all sides, resuming interrupted work, and time them together."""
    before, folder = setting.work / f"seed-{seed}" / "whole", setting.work / f"seed-{seed}" / model
    weights = weights_of(before, model)
    trained = [f'space.weights="{weights.absolute()}"', 'train.teacher_sees="plain"']
    job = setting.experiment(seed, [*open_ends(model), *trained])
    print(f"seed {seed}: running the whole job for {model}", flush=True)
    networks, run_inputs, seconds = of_job(f"{model} {ELASTIC}", job, folder / "run")
    spent = {ELASTIC: seconds + 60 * arguments.pretraining / processes(job.recipe)}
    spent |= {SCRATCH: spent[ELASTIC], SLICED: seconds}
    with cores(job.recipe) as at_once:
        for side in arguments.rivals:
            networks += rivals(side, model, run_inputs, spent[side], folder, at_once, arguments)
    print(f"seed {seed}: timing {len(networks)} networks of {model}", flush=True)
    targets = [Target.parse(name) for name in SearchGoal(job.recipe.objective).targets]
    return [
        *measured_rows(networks, targets, run_inputs, seed),
        *(Row("seconds", f"{model} {side}", seed, spent[side], "s", 1)
          for side in (ELASTIC, *arguments.rivals)),
    ]  # fmt: skip


def processes(recipe: Recipe) -> int:
    """Return the number of networks trained in parallel."""
    return (os.cpu_count() or 1) if recipe.workers else 1


def rivals(
    side: str,
    model: str,
    run_inputs: RunInputs,
    seconds: float,
    folder: Path,
    at_once: int,
    arguments: argparse.Namespace,
) -> list[Network]:
    """Train the networks of a baseline, which share the seconds equally."""
    share = seconds_each(seconds, len(arguments.widths), at_once)
    if side == SCRATCH:
        wanted = [scaled(model, width, run_inputs) for width in arguments.widths]
    else:
        wanted = [sliced(width, run_inputs.space) for width in arguments.widths]
    name, config = f"{model} {side}", for_seconds(run_inputs, share)
    return train_alone(name, wanted, run_inputs, [config], folder / side, at_once)[0]


def judge(rows: Sequence[Row], model: str, seed: int) -> list[Row]:
    """Compare the elastic model with each baseline that was observed."""
    sides = {row.details["side"] for row in rows if row.metric == "test_error"}
    ours = f"{model} {ELASTIC}"
    found = [
        row
        for side in (SCRATCH, SLICED)
        if f"{model} {side}" in sides
        for row in compared(rows, ours, f"{model} {side}", seed, f"{ours} / {side}")
    ]
    return [*found, *(row for row in rows if row.metric == "seconds")]


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, seeds=[1], recipe=here / "recipe.toml")
