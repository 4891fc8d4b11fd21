"""Reading of recipes: TOML with overrides, checked key by key."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pydantic
import tomlkit
from tomlkit.exceptions import TOMLKitError

from hwnas.errors import ConfigError
from hwnas.plugin import closest, in_words_of_toml
from hwnas.recipe.budget import compute_values
from hwnas.recipe.recipe import Recipe
from hwnas.recipe.text import set_by_text

__all__ = ["MIGRATIONS", "SCHEMA", "parse_recipe", "read_recipe"]


def _shift_of_values(document: tomlkit.TOMLDocument) -> None:
    """Set the default of schema 1 for regression: images are shifted by one pixel."""
    task, train = document.get("task", {}), document.get("train", {})
    if isinstance(train, dict) and isinstance(task, dict) and task.get("name") == "regression":
        train.setdefault("shift_pixels", 1)


SCHEMA = 2
"""Version of recipes. It is raised where a default changes; older runs keep the old default by an
entry in `MIGRATIONS`."""

MIGRATIONS: Mapping[int, Callable[[tomlkit.TOMLDocument], None]] = {1: _shift_of_values}
"""Functions by schema that write the defaults of that schema into a recipe that does not set
them."""


def read_recipe(
    path: Path, overrides: Sequence[str] = (), schema: int = SCHEMA
) -> tuple[Recipe, str]:
    """Read a recipe.

    Args:
        path: Path of the TOML file.
        overrides: Overrides, each ``"table.key=value"``; the value is TOML, or else text.
        schema: Schema of the file; an older one is migrated to the current one.

    Returns:
        The recipe, and its text with the overrides applied.

    Raises:
        ConfigError: The file is missing or not TOML; a key, name or value is unknown.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the recipe {path}: {error}") from error
    return parse_recipe(text, overrides, schema, str(path))


def parse_recipe(
    text: str, overrides: Sequence[str] = (), schema: int = SCHEMA, where: str = "the recipe"
) -> tuple[Recipe, str]:
    """Parse the text of a recipe; see `read_recipe`.

    Args:
        text: Text of the recipe, as TOML.
        overrides: Overrides, each ``"table.key=value"``.
        schema: Schema of the text.
        where: Name of the recipe in messages.
    """
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise ConfigError(f"{where} is not TOML: {error}") from error
    for number in range(schema, SCHEMA):
        MIGRATIONS[number](document)
    for override in overrides:
        set_by_text(document, override)
    text = tomlkit.dumps(document)
    return _parse(tomllib.loads(text), where), text


def _parse(table: dict[str, Any], where: str) -> Recipe:
    for name in ("task", "space"):
        if isinstance(section := table.get(name), dict):
            options = {k: v for k, v in section.items() if k != "name"}
            table[name] = {k: v for k, v in section.items() if k == "name"} | {"options": options}
    _known_keys(table, Recipe, f"{where}: ")
    for name, value in compute_values(table).items():
        stage, key = name.split(".")
        table.setdefault(stage, {})[key] = value
    _leave_to_plan(table)
    try:
        # As JSON, because strict validation converts a list to a tuple only there.
        text = json.dumps(table, default=str)
        return pydantic.TypeAdapter(Recipe).validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{where}: {_message(error)}") from error


def _leave_to_plan(table: dict[str, Any]) -> None:
    """Set a placeholder training budget where the job has one; `completed` sets the planned one."""
    run = table.get("run", {})
    minutes = run.get("minutes") if isinstance(run, dict) else None
    train = table.setdefault("train", {}) if minutes is not None else None
    if isinstance(train, dict) and not {"epochs", "budget_minutes"} & set(train):
        train["budget_minutes"] = 1.0  # placeholder


def _message(error: pydantic.ValidationError) -> str:
    """Return one line about an error: the key, its value and what was expected."""
    # Other tables take values of [compute], so its own errors come first.
    first = min(error.errors(), key=lambda found: found["loc"][:1] != ("compute",))
    key = ".".join(str(part) for part in first["loc"] if not _names_a_type(part))
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return str(cause)
    if first["type"] == "missing":
        return f"{key} is missing; it has no default"
    expected = in_words_of_toml(first)
    if first["type"] == "tuple_type" and key == "objective":
        expected += "; an objective's table has two brackets, [[objective]]"
    return f"{key} is {first['input']!r}; expected {expected}"


def _names_a_type(part: int | str) -> bool:
    """Return whether a part of an error's place is no key, but one of the types that a key has."""
    return part in ("int", "float", "str") or str(part).startswith("tuple[")


def _known_keys(value: Any, kind: Any, where: str) -> None:
    """Raise if a key is not a field; the message names the closest field."""
    if get_origin(kind) is UnionType:
        kind = next(option for option in get_args(kind) if option is not NoneType)
    if get_origin(kind) is tuple and isinstance(value, list):
        for index, item in enumerate(value):
            _known_keys(item, get_args(kind)[0], f"{where.removesuffix('.')}[{index}].")
    if not (is_dataclass(kind) and isinstance(value, dict)):
        return
    assert isinstance(kind, type)
    names = [f.name for f in fields(kind)]
    hints = get_type_hints(kind)
    for key, item in value.items():
        if key not in names:
            raise ConfigError(f"{where}{key} is not a key of a recipe; {closest(key, names)}")
        _known_keys(item, hints[key], f"{where}{key}.")
