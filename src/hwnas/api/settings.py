"""Settings of a recipe that a Python program gives by their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from hwnas.api.options import named
from hwnas.config_class import given_fields
from hwnas.errors import ConfigError
from hwnas.hashing import differing_fields
from hwnas.recipe import Named, Recipe
from hwnas.recipe.text import toml_text
from hwnas.search import Objective

__all__ = ["flat_settings", "objective_table", "overrides_of", "set_key"]

_TABLES = tuple(
    each.name for each in fields(Recipe) if each.name not in ("name", "objective", "seed")
)


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a recipe by dotted key.

    Args:
        settings: Values by dotted key, or config objects and mappings by the name of their table.
            Of a config object, the fields that were given count.

    Raises:
        ConfigError: A key or a value is none of them.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"settings is {settings!r}; expected a mapping, such as {{'search.batch': 8}}"
        )
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if not isinstance(key, str):
            raise ConfigError(
                f"settings has the key {key!r}; expected text, such as 'search.batch'"
            )
        value = named(value)
        whole = value.table if isinstance(value, Named) else value
        if is_dataclass(whole) and not isinstance(whole, type) and key != "objective":
            whole = given_fields(whole)
        if "." in key or key == "objective":
            found[key] = value
        elif key in _TABLES and isinstance(whole, Mapping):
            found |= {f"{key}.{name}": each for name, each in whole.items()}
        else:
            raise ConfigError(
                f"settings has {key!r}; expected a dotted key, such as 'search.batch', or the name "
                f"of a table with a config object: {', '.join(_TABLES)}"
            )
    return {key: value for key, value in found.items() if value is not None}


def set_key(tables: dict[str, Any], key: str, value: Any) -> None:
    """Set a key of a recipe, which no other argument sets."""
    if key == "objective":
        raise ConfigError("objective is in settings; give objectives=... instead")
    *path, last = key.split(".")
    place: Any = tables
    for name in path:
        if isinstance(place, list) and name.isdigit() and int(name) < len(place):
            place = place[int(name)]
        elif isinstance(place, dict):
            place = place.setdefault(name, {})
        else:
            break
    if not isinstance(place, dict):
        raise ConfigError(f"settings has {key!r}, but {path[0]!r} is not a table of the recipe")
    if last in place:
        raise ConfigError(f"{key} is in settings, but another argument sets it as well; remove one")
    place[last] = value


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as overrides of a recipe, each as ``"table.key=value"``.

    Args:
        settings: See `flat_settings`; ``objective`` may be a list of objectives.
    """
    found = []
    for key, value in flat_settings(settings).items():
        if key == "objective" and isinstance(value, Sequence):
            tables = ", ".join(toml_text(objective_table(each), key) for each in value)
            found.append(f"{key}=[{tables}]")
        else:
            found.append(f"{key}={toml_text(value, key)}")
    return found


def objective_table(objective: object) -> dict[str, Any]:
    """Return an objective as a table of a recipe.

    Raises:
        ConfigError: It is no objective.
    """
    if isinstance(objective, Mapping):
        return dict(objective)
    if not isinstance(objective, Objective):
        raise ConfigError(
            f"objectives has {objective!r}; expected hwnas.maximize(...) and hwnas.minimize(...)"
        )
    return differing_fields(objective)
