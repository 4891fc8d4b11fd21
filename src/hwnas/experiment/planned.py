"""A recipe whose job has a budget: what it leaves open is planned, once for a run."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.atomic import write_json
from hwnas.errors import RunError
from hwnas.planning import Facts, default_space, make_plan, measure_speeds
from hwnas.planning.plan import BATCH_SIZE
from hwnas.planning.speed import probes
from hwnas.progress import Reporter
from hwnas.recipe import Recipe, completed, parse_recipe, read_recipe
from hwnas.run_folder import PLAN
from hwnas.search.data import ImageData
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.catalogue import joint_space
from hwnas.stages.untrained import most_macs

__all__ = ["planned_as", "with_plan"]

SCHEMA = 1


def with_plan(
    recipe: Recipe, text: str, data: ImageData, folder: Path, path: Path, reporter: Reporter
) -> tuple[Recipe, str]:
    """Plan what a recipe leaves open, and record the plan in the run's folder.

    Args:
        recipe: With ``run.minutes``.
        text: Of the recipe.
        data: Its images.
        folder: Where relative paths of the recipe start.
        path: Of the run.
        reporter: Tells the user what is planned.

    Returns:
        The recipe with all that was planned, and its text.

    Raises:
        ConfigError: The budget is too small.
    """
    assert recipe.run.minutes is not None
    facts = Facts.of(data, recipe.run.minutes, os.cpu_count() or 1)
    given = tomllib.loads(text)
    reporter.note("measuring how fast networks train here")
    images, _ = data.train.take(np.arange(min(BATCH_SIZE, facts.images)))
    requested = _flat(given)
    space = _space(given.get("space", {}), default_space(requested), data, folder)
    networks = probes(space)
    facts = replace(facts, most_macs=most_macs(space, networks, recipe.objective))
    plan = make_plan(facts, measure_speeds(space, networks, images), requested)
    for line in plan.summary:
        reporter.note(line)
    text = completed(text, plan.values)
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / PLAN, {"schema": SCHEMA, "request": recipe.hash, **plan.to_json()})
    return parse_recipe(text)


def _space(
    given: Mapping[str, Any], default: Mapping[str, Any], data: ImageData, folder: Path
) -> SearchSpace:
    """The space of the job's networks, at the resolution of the images."""
    options = dict(given)
    if "name" not in given:
        options = {**default, **given}
        options.setdefault("resolution", [max(data.image_shape[:2])])
    names = options.pop("name")
    outputs = 10 if data.class_names is None else len(data.class_names)
    names = (names,) if isinstance(names, str) else tuple(names)
    return joint_space(names, data.image_shape, outputs, options, folder).network


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values of a recipe by dotted key."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        inside = isinstance(value, Mapping)
        found |= _flat(value, f"{prefix}{name}.") if inside else {prefix + name: value}
    return found


def planned_as(recipe: Recipe, path: Path) -> tuple[Recipe, str] | None:
    """Return what a run planned for the same recipe; None if it planned nothing, or for another.

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
