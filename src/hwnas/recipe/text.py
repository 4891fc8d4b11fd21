"""Text of a recipe: written from values, completed with a plan, changed key by key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import is_dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

import numpy as np
import tomlkit
from tomlkit.exceptions import TOMLKitError

from hwnas.config_class import given_fields
from hwnas.errors import ConfigError

__all__ = ["completed", "recipe_text", "set_by_text", "toml_text"]


def recipe_text(values: Mapping[str, Any]) -> str:
    """Return a recipe as TOML.

    Args:
        values: Values by key; nested mappings are tables, and a list of mappings is a list of
            tables. A dataclass is the table of the fields that were given.

    Raises:
        ConfigError: TOML cannot hold a value.
    """
    return tomlkit.dumps({name: _plain(value, name) for name, value in values.items()})


def toml_text(value: Any, where: str) -> str:
    """Return one value as TOML.

    Args:
        value: Value, as in `recipe_text`.
        where: Key of the value, for messages.

    Raises:
        ConfigError: TOML cannot hold the value.
    """
    plain = _plain(value, where)
    if isinstance(plain, dict):
        table = tomlkit.inline_table()
        table.update(plain)
        return str(table.as_string())
    return str(tomlkit.item(plain).as_string())


def _plain(value: Any, where: str) -> Any:
    """Return a value of a kind that TOML has."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        value = given_fields(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each, f"{where}.{name}") for name, each in value.items()}
    if isinstance(value, tuple | list | np.ndarray):
        return [_plain(each, f"{where}[{index}]") for index, each in enumerate(value)]
    raise ConfigError(
        f"{where} is {value!r}; a recipe holds numbers, texts, true or false, lists, tables and "
        "config objects only"
    )


def completed(text: str, planned: Mapping[str, Any]) -> str:
    """Return a recipe's text with planned values for keys that it does not set.

    Args:
        text: Text of the recipe, as TOML.
        planned: Planned values by dotted key.
    """
    document, given = tomlkit.parse(text), tomllib.loads(text)
    for name, value in planned.items():
        if any(fnmatchcase(name, keys) and _has(given, owner) for keys, owner in _GO_WITH):
            continue
        table: Any = document
        *tables, key = name.split(".")
        for each in tables:
            table = table.setdefault(each, tomlkit.table())
        if key not in table:
            table[key] = value
    return tomlkit.dumps(document)


_GO_WITH = (
    ("space.*", "space.name"),
    ("search.options.*", "search.sampler"),
    ("train.budget_minutes", "train.epochs"),
    ("train.epochs", "train.budget_minutes"),
    ("deploy.finetune_epochs", "deploy.finetune_minutes"),
    ("deploy.finetune_minutes", "deploy.finetune_epochs"),
)
"""Keys that are not planned if the recipe has another key, as pairs (pattern, other key)."""


def _has(given: Mapping[str, Any], name: str) -> bool:
    table, _, key = name.partition(".")
    return key in given.get(table, {})


def set_by_text(document: tomlkit.TOMLDocument, text: str) -> None:
    """Set one key of a recipe from a text like ``"search.trials=500"``.

    Args:
        document: Recipe to change.
        text: Dotted key, ``=`` and the value, which is TOML, or else text.

    Raises:
        ConfigError: The text has another form, or there is no such table.
    """
    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {text!r}: expected table.key=value, such as search.trials=500")
    table: Any = document
    for key in keys[:-1]:
        if isinstance(table, list):
            if not key.isdigit() or int(key) >= len(table):
                raise ConfigError(
                    f"--set {text!r}: {key!r} is not an index of a list of {len(table)}"
                )
            table = table[int(key)]
            continue
        table = table.setdefault(key, tomlkit.table())
        if not isinstance(table, dict | list):
            raise ConfigError(f"--set {text!r}: {key!r} is not a table")
    if isinstance(table, list):
        raise ConfigError(f"--set {text!r}: give an index and a key, such as objective.0.limit=5")
    try:
        table[keys[-1]] = tomlkit.value(value.strip())
    except TOMLKitError:
        table[keys[-1]] = value.strip()
