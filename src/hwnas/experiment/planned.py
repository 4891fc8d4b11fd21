"""Recipes with a budget, whose missing settings are planned once for each run."""

from __future__ import annotations

import contextlib
import json
import os
import time
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit
import torch
from torch import nn

from hwnas.atomic import write_json
from hwnas.errors import ConfigError, RunError
from hwnas.given_objects import GivenObjects
from hwnas.interval import is_proportion
from hwnas.planning import (
    JobFacts,
    Plan,
    TrainingRates,
    default_space,
    make_plan,
    measure_speeds,
    rates_of,
    slowdown,
)
from hwnas.planning.plan import BATCH_SIZE
from hwnas.planning.speed import probes
from hwnas.progress import Reporter
from hwnas.recipe import Recipe, SpaceConfig, parse_recipe, read_recipe
from hwnas.recipe.budget import compute_values
from hwnas.recipe.text import completed, set_by_text
from hwnas.run_folder import PLAN
from hwnas.search.data.image_data import ImageData
from hwnas.search.engine.cluster import local_ray
from hwnas.search.engine.devices import device_here
from hwnas.search.engine.placement import MOST_ON_A_GPU, live_nodes
from hwnas.search.evaluation.scoring import score
from hwnas.search.tasks.task import Task
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.supernet.supernet import batch_norms
from hwnas.stages.finalists.chance import constant_score, is_at_chance
from hwnas.stages.goal import SearchGoal
from hwnas.stages.run_inputs import RunInputs, space_of_recipe, task_of
from hwnas.stages.untrained_costs import most_macs

__all__ = ["planned_as", "with_plan"]

SCHEMA = 1
_PROBE_SECONDS = 10.0


def with_plan(
    recipe: Recipe,
    text: str,
    data: ImageData,
    folder: Path,
    path: Path,
    reporter: Reporter,
    objects: GivenObjects,
    begun: float,
) -> tuple[Recipe, str]:
    """Plan the settings that a recipe leaves open, and record the plan in the run's folder.

    Args:
        recipe: Recipe with ``run.minutes``.
        text: Text of the recipe.
        data: Images of the recipe.
        folder: Folder that relative paths of the recipe start from.
        path: Folder of the run.
        reporter: Reporter that shows the plan to the user.
        objects: Python objects that stand in for names in the recipe.
        begun: Time of `time.monotonic` when the job began.

    Returns:
        The recipe with the planned settings, and its text.

    Raises:
        ConfigError: The budget is too small, or ``run.max_loss_points`` does not apply.
    """
    assert recipe.run.minutes is not None
    if data.kind in ("pictures", "tokens"):
        raise ConfigError(
            f"run.minutes plans no job for {data.kind} as targets yet; leave it out, and set "
            "train.epochs and search.trials"
        )
    text = completed(text, compute_values(tomllib.loads(text)))
    given = tomllib.loads(text)
    requested = _flat(given)
    device = device_here(recipe.search.gpus_per_worker)
    gpus = 0 if device.type == "cpu" else torch.accelerator.device_count()
    cores = _at_once(requested.get("search.workers"), gpus)
    goal = SearchGoal(recipe.objective)
    targets, formats = max(1, len(goal.targets)), len(goal.number_formats)
    facts = JobFacts.of(data, recipe.run.minutes, cores, gpus, targets, formats)
    facts = replace(facts, converts=goal.number_formats != ("fp32",))
    reporter.note("measuring the training speed of this machine")
    images, _ = data.train.take(np.arange(min(BATCH_SIZE, facts.images)))
    task, default = task_of(recipe, data, objects), default_space(requested, data.image_shape)
    space = _space(given.get("space", {}), default, data, task, folder, objects)
    if (model := space.teacher()) is not None:
        facts = replace(facts, pretrained=True, batch_norm=bool(batch_norms(model)))
    text = _with_limit(text, recipe, space, model, task, data, reporter)
    networks = probes(space)
    facts = replace(facts, most_macs=most_macs(space, networks, recipe.objective))
    speeds = measure_speeds(space, networks, images, seconds=_PROBE_SECONDS, device=device)
    facts = replace(facts, spent_minutes=(time.monotonic() - begun) / 60)
    plan = make_plan(facts, speeds, requested)
    draft, _ = parse_recipe(completed(text, plan.values))
    if draft.search.evaluator == "train":
        run_inputs = RunInputs.prepare(draft, folder, objects, data)
        longer = _rehearsed(run_inputs, rates_of(speeds), facts.cores, folder)
        facts = replace(facts, spent_minutes=(time.monotonic() - begun) / 60)
        plan = make_plan(facts, speeds, requested, longer)
    for line in plan.summary:
        reporter.note(line)
    if own := _set_otherwise(requested, plan):
        reporter.note(f"the recipe sets, instead of what was planned: {', '.join(own)}")
    text = completed(text, plan.values)
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / PLAN, {"schema": SCHEMA, "request": recipe.hash, **plan.to_json()})
    return parse_recipe(text)


def _set_otherwise(requested: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return the values of a recipe that replace those of a plan's summary, as ``key = value``."""
    return [
        f"{key} = {requested[key]}"
        for key, value in plan.values.items()
        if not key.startswith("space.") and requested.get(key, value) != value
    ]


def _with_limit(
    text: str,
    recipe: Recipe,
    space: SearchSpace,
    model: nn.Module | None,
    task: Task,
    data: ImageData,
    reporter: Reporter,
) -> str:
    """Return a recipe's text with the limit on finalists that ``run.max_loss_points`` means.

    Raises:
        ConfigError: There is no trained model to compare with, or it is at chance; there is no
            objective to limit, or the objective has another limit.
    """
    points, metric = recipe.run.max_loss_points, task.metrics[0]
    if points is None:
        return text
    if model is None:
        raise ConfigError(
            f"run.max_loss_points compares finalists with a trained model, but space {space.name} "
            "starts with random weights; give space.weights, or leave it out"
        )
    own = [i for i, each in enumerate(recipe.objective) if each.metric == metric.name]
    if not own or recipe.objective[own[0]].limit is not None:
        raise ConfigError(
            f"run.max_loss_points sets the limit of an objective {metric.name!r}; give one without "
            "a limit"
        )
    shape = space.input_shape(space.largest())
    constant = constant_score(model, task, data, shape)
    device = device_here(recipe.search.gpus_per_worker)
    found = score(model.to(device), task, data.validation, shape, "validation")
    value = found.values[metric.name]
    if is_at_chance(task, found, constant):
        raise ConfigError(
            f"the given model has {metric.name} {value:.3g} on validation images, no better than "
            f"constant outputs ({constant.values[metric.name]:.3g}); give its trained weights, the "
            "size of the images it was trained on (data.size), and data.mean and data.std if it "
            "expects other ones than those of these images"
        )
    loss = points / 100 * (1.0 if is_proportion(metric.unit) else abs(value))
    limit = value - loss if metric.direction == "maximize" else value + loss
    reporter.note(
        f"the given model has {metric.name} {value:.4g} on validation images; finalists have to "
        f"reach {limit:.4g}"
    )
    document = tomlkit.parse(text)
    set_by_text(document, f"objective.{own[0]}.limit={limit:.6f}")
    set_by_text(document, f"objective.{own[0]}.limit_on=validation")
    return tomlkit.dumps(document)


def _at_once(workers: int | None, gpus: int) -> int:
    """Return how many networks are trained at once, by so many workers if the recipe says so."""
    cores = os.cpu_count() or 1
    if gpus:
        cores = min(cores, gpus * MOST_ON_A_GPU)
    return cores if workers is None else max(1, min(cores, workers))


def _rehearsed(run_inputs: RunInputs, rates: TrainingRates, cores: int, folder: Path) -> float:
    """Return the slowdown of the trainings of a drafted recipe."""
    recipe, workers = run_inputs.recipe, min(cores, run_inputs.recipe.search.workers)
    ray = local_ray(cores, [folder]) if workers else contextlib.nullcontext()
    most_macs = float(recipe.search.options.get("most_macs", rates.sizes[1]))
    given = run_inputs.space, run_inputs.task, run_inputs.data.train, recipe.train
    with ray:
        gpus = recipe.search.gpus_per_worker
        if workers:
            gpus = recipe.search.worker_resources(live_nodes()).gpus
        return slowdown(*given, rates, most_macs, workers, gpus)


def _space(
    given: Mapping[str, Any],
    default: Mapping[str, Any],
    data: ImageData,
    task: Task,
    folder: Path,
    objects: GivenObjects,
) -> SearchSpace:
    """Return the space of the job's networks, by default at the resolution of the images."""
    options = dict(given)
    if "name" not in given:
        options = {**default, **given}
        options.setdefault("resolution", [max(data.image_shape[:2])])
    names = options.pop("name")
    config = SpaceConfig(names if isinstance(names, str) else tuple(names), options)
    return space_of_recipe(config, data, task, folder, objects).network


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a recipe by dotted key."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        inside = isinstance(value, Mapping)
        found |= _flat(value, f"{prefix}{name}.") if inside else {prefix + name: value}
    return found


def planned_as(recipe: Recipe, path: Path) -> tuple[Recipe, str] | None:
    """Return the planned recipe of a run and its text; None if it has no plan for this recipe.

    Raises:
        RunError: The record is damaged.
    """
    try:
        about = json.loads((path / PLAN).read_text(encoding="utf-8"))
        if about["schema"] != SCHEMA or about["request"] != recipe.hash:
            return None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path / PLAN} is damaged ({error}); search in another folder") from error
    return read_recipe(path / "recipe.toml")
