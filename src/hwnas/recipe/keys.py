"""Dependencies of the stages of a run on the keys of its recipe."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_type_hints

from hwnas.recipe.recipe import Recipe

__all__ = [
    "AFTER",
    "DECIDES",
    "KeyDependency",
    "RecipeStage",
    "code_of",
    "continues",
    "decides",
    "later_than",
    "parts_of",
    "recipe_keys",
    "redone_by",
    "settings_of",
]

_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

RecipeStage = Literal[
    "calibrate",
    "train",
    "ranking",
    "strategy",
    "search",
    "random-baseline",
    "finalists",
    "reference",
    "report",
]

AFTER: Mapping[RecipeStage, tuple[RecipeStage, ...]] = {
    "calibrate": (),
    "train": (),
    "ranking": ("train",),
    "strategy": ("calibrate", "train"),
    "search": ("calibrate", "train", "strategy"),
    "random-baseline": ("calibrate", "train", "strategy"),
    "finalists": ("search",),
    "reference": (),
    "report": ("ranking", "search", "random-baseline", "finalists", "reference"),
}
"""Stages of a run in order, each with the stages whose results it uses."""

How = Literal["kept", "continued", "redone", "by content"]


@dataclass(frozen=True)
class KeyDependency:
    """Dependency of stages on a key of a recipe.

    Attributes:
        how: ``"kept"`` if no result depends on the key; ``"continued"`` if the stage continues from
            its existing results; ``"redone"`` if it starts again; ``"by content"`` if it starts
            again when the content that the key refers to differs, whatever its name.
        stages: Stages that depend directly on the key; later stages depend on these.
        note: Remark for the user, mostly about results of those stages that are kept.
    """

    how: How
    stages: tuple[RecipeStage, ...] = ()
    note: str = ""


_LEARNED: tuple[RecipeStage, ...] = ("train", "search", "finalists")

DECIDES: Mapping[str, KeyDependency] = {
    "name": KeyDependency("kept"),
    "run.*": KeyDependency("kept", note="the plan is in the run's own recipe"),
    "compute.*": KeyDependency("kept", note="`precision` counts as `train.precision`"),
    "seed": KeyDependency("redone", ("calibrate", *_LEARNED, "strategy", "reference")),
    "data.*": KeyDependency("by content", (*_LEARNED, "reference")),
    "task.*": KeyDependency("by content", (*_LEARNED, "reference")),
    "space.*": KeyDependency("by content", ("calibrate", *_LEARNED)),
    "objective": KeyDependency(
        "continued",
        ("search", "random-baseline", "reference"),
        "all evaluations; a target without a calibration gets one",
    ),
    "train.epochs": KeyDependency(
        "continued", ("train", "reference"), "training continues from its checkpoint"
    ),
    "train.budget_minutes": KeyDependency(
        "continued", ("train", "reference"), "training continues from its checkpoint"
    ),
    "train.batch_size": KeyDependency(
        "redone", ("train", "reference"), "an unfinished training continues from its checkpoint"
    ),
    "train.accumulate": KeyDependency(
        "redone", ("train", "reference"), "an unfinished training continues from its checkpoint"
    ),
    "train.weights": KeyDependency("by content", ("train",)),
    "train.patience": KeyDependency("redone", ("finalists", "reference")),
    "train.workers": KeyDependency("kept"),
    "train.*_per_worker": KeyDependency("kept"),
    "train.checkpoint_seconds": KeyDependency("kept"),
    "train.ranking_check": KeyDependency("redone", ("ranking",)),
    "train.ranking_epochs": KeyDependency("redone", ("ranking",)),
    "train.*": KeyDependency("redone", ("train", "reference")),
    "predictor.networks": KeyDependency("redone", ("calibrate",)),
    "predictor.reuse": KeyDependency("redone", ("calibrate",)),
    "search.trials": KeyDependency("continued", ("search", "random-baseline"), "all evaluations"),
    "search.patience": KeyDependency("continued", ("search", "random-baseline"), "all evaluations"),
    "search.evaluator": KeyDependency("redone", ("search", "random-baseline")),
    "search.validation_images": KeyDependency("redone", ("search", "random-baseline")),
    "search.fidelity.*": KeyDependency(
        "redone",
        ("search", "random-baseline"),
        "evaluations at a cost that the new recipe also has",
    ),
    "search.random_baseline": KeyDependency("redone", ("random-baseline",)),
    "search.strategy": KeyDependency("redone", ("strategy",)),
    "search.strategy_options": KeyDependency("redone", ("strategy",)),
    "search.sampler": KeyDependency("kept", note="affects the next candidates only"),
    "search.options": KeyDependency("kept", note="affects the next candidates only"),
    "search.*": KeyDependency("kept"),
    "deploy.reference": KeyDependency("redone", ("reference",)),
    "deploy.reference_minutes": KeyDependency("redone", ("reference",)),
    "deploy.finetune_seeds": KeyDependency("redone", ("finalists", "reference")),
    "deploy.formats": KeyDependency("redone", ("finalists", "reference")),
    "deploy.top": KeyDependency("continued", ("finalists",), "weights of existing finalists"),
    "deploy.gpus_per_worker": KeyDependency("kept"),
    "deploy.*": KeyDependency("redone", ("finalists",)),
}
"""Dependencies by key or pattern; the first pattern that matches a key applies."""


def recipe_keys(table: type = Recipe, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all keys of a recipe."""
    hints = get_type_hints(table)
    for field in fields(table):
        kind = hints[field.name]
        if isinstance(kind, type) and is_dataclass(kind):
            yield from recipe_keys(kind, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def decides(key: str) -> KeyDependency:
    """Return the dependency of stages on a key.

    Raises:
        KeyError: The key matches no pattern of `DECIDES`.
    """
    for pattern, found in DECIDES.items():
        if fnmatchcase(key, pattern):
            return found
    raise KeyError(key)


def continues(name: str) -> bool:
    """Return whether an input of a stage is a key of kind ``"continued"``; see `KeyDependency`."""
    return name in set(recipe_keys()) and decides(name).how == "continued"


def settings_of(recipe: Recipe, stage: RecipeStage) -> dict[str, Any]:
    """Return the keys, not at their default, of a recipe that a stage depends on directly."""
    return {
        key: value
        for key, value in recipe.values.items()
        if (found := decides(key)).how != "by content" and stage in found.stages
    }


def code_of(recipe: Recipe, stage: RecipeStage) -> dict[str, str]:
    """Return a hash of each file of the user's own code that a stage depends on directly.

    These are the modules that the recipe names as ``"package.module:object"``, without the modules
    that they import. A function that provides data is identified by its data instead.
    """
    found = {}
    for key, value in recipe.values.items():
        if key.startswith("data.") or stage not in decides(key).stages:
            continue
        for module in sorted(_modules(value)):
            with contextlib.suppress(ImportError, ValueError, AttributeError):
                spec = importlib.util.find_spec(module)
                if spec is not None and spec.origin is not None:
                    source = Path(spec.origin).read_bytes()
                    found[f"code of {module}"] = hashlib.sha256(source).hexdigest()[:16]
    return found


def _modules(value: Any) -> set[str]:
    """Return the names of modules in ``"package.module:object"``, anywhere in a value."""
    if isinstance(value, str):
        return {value.partition(":")[0]} if _OWN.fullmatch(value) else set()
    items = value.values() if isinstance(value, Mapping) else value
    return set().union(*map(_modules, items)) if isinstance(items, Iterable) else set()


def parts_of(name: str) -> tuple[RecipeStage, str | None]:
    """Return stage and target of a stage's name in a run's record, such as ``search@TARGET``.

    The calibration of another metric than latency names it, too: ``calibrate@energy_mj@TARGET``.
    """
    stage, *others = name.split("@")
    return stage, others[-1] if others else None  # type: ignore[return-value]


def redone_by(key: str) -> list[RecipeStage]:
    """Return the stages that are redone or continued when a key changes, in order."""
    return _with_later(decides(key).stages)


def later_than(stage: RecipeStage) -> list[RecipeStage]:
    """Return the stages that depend on the results of a stage, in order."""
    return [each for each in _with_later([stage]) if each != stage]


def _with_later(stages: Iterable[RecipeStage]) -> list[RecipeStage]:
    found = set(stages)
    for stage, before in AFTER.items():
        if found.intersection(before):
            found.add(stage)
    return [stage for stage in AFTER if stage in found]
