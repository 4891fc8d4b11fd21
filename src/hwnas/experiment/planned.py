"""A recipe whose job has a budget: what it leaves open is planned, once for a run."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hwnas.atomic import write_json
from hwnas.errors import RunError
from hwnas.planning import Facts, make_plan, measure_speeds
from hwnas.planning.plan import BATCH_SIZE, SPACE, WIDTHS
from hwnas.progress import Reporter
from hwnas.recipe import Recipe, completed, parse_recipe, read_recipe
from hwnas.run_folder import PLAN
from hwnas.search.data import ImageData
from hwnas.search_spaces.catalogue import named_space

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
    reporter.note("measuring how fast networks train here")
    options = {**SPACE, "resolution": [max(data.image_shape[:2])]}
    outputs = 10 if data.class_names is None else len(data.class_names)
    spaces = [
        named_space("resnet", data.image_shape, outputs, {**options, "width": [width]}, folder)
        for width in WIDTHS
    ]
    speeds = [
        speed
        for space in spaces
        for speed in measure_speeds(
            space, [space.largest()], min(BATCH_SIZE, facts.images), 10 / len(WIDTHS)
        )
    ]
    plan = make_plan(facts, speeds)
    for line in plan.summary:
        reporter.note(line)
    text = completed(text, plan.values)
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / PLAN, {"schema": SCHEMA, "request": recipe.hash, **plan.to_json()})
    return parse_recipe(text)


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
