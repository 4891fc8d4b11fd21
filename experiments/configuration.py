"""Configurations of recorded rows: the settings that the hash in a row stands for.

Each folder of rows has a ``configurations.json``, which maps each hash to its settings. Settings
are compared by value: keys that were added after the recording count as today's defaults.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.atomic import write_json
from hwnas.errors import ConfigError, RunError
from hwnas.hashing import content_hash

if TYPE_CHECKING:
    from hwnas.recipe import Recipe

__all__ = ["Configuration", "Configurations", "differences", "lost_commits", "recipe_values"]

FILE = "configurations.json"
_OF_IMAGES = ("classification", "segmentation")  # tasks whose images are shifted by default
_RECIPE, _RECIPES = "recipe", "recipes"


@dataclass(frozen=True)
class Configuration:
    """Settings of recorded rows.

    Attributes:
        settings: JSON values; a recipe is stored with all the keys that it had then.
        superseded: Description of how today's settings differ; None where they are the same.
    """

    settings: Mapping[str, Any]
    superseded: str | None = None


class Configurations:
    """Configurations of the rows in one folder.

    Args:
        folder: Folder of the rows.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def __getitem__(self, hashed: str) -> Configuration:
        return self._read()[hashed]

    def get(self, hashed: str) -> Configuration | None:
        """Return the configuration of a hash, or None if the hash is unknown."""
        return self._read().get(hashed)

    def hash_of(self, settings: Mapping[str, Any]) -> str:
        """Return the hash of the known configuration with equal values, or else a new hash."""
        for hashed, known in self._read().items():
            if not list(differences(known.settings, settings)):
                return hashed
        return content_hash(dict(settings))

    def put(self, hashed: str, configuration: Configuration) -> None:
        """Record a configuration; the caller holds the lock of the folder."""
        known = {**self._read(), hashed: configuration}
        values = {key: _without_none(asdict(known[key])) for key in sorted(known)}
        write_json(self._path, _as_json(values))

    def _read(self) -> dict[str, Configuration]:
        if not self._path.exists():
            return {}
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return {key: Configuration(**value) for key, value in found.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self._path} is not a file of configurations ({error}); restore it with git"
            ) from error


def lost_commits() -> Mapping[str, str]:
    """Return the recorded commits that are not in the history, with the reasons."""
    text = (Path(__file__).parent / "lost_commits.toml").read_text(encoding="utf-8")
    found: dict[str, str] = tomllib.loads(text)["lost"]
    return found


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Return all keys of a recipe, as JSON values."""
    import pydantic  # imported here because kernels are recorded where pydantic is not installed

    from hwnas.recipe import Recipe

    values: dict[str, Any] = pydantic.TypeAdapter(Recipe).dump_python(recipe, mode="json")
    return values


def differences(recorded: Mapping[str, Any], today: Mapping[str, Any]) -> Iterator[str]:
    """Yield each difference between two settings, e.g. ``"train.sampling: 'sandwich' -> 'auto'"``.

    Args:
        recorded: Settings of recorded rows; missing keys of a recipe count as today's defaults.
        today: Current settings.
    """
    then, now = (dict(_flat(_whole(settings))) for settings in (recorded, today))
    for key in sorted(then.keys() | now.keys()):
        if key not in then or key not in now or then[key] != now[key]:
            yield f"{key}: {_shown(then, key)} -> {_shown(now, key)}"


def _whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as JSON values, with the missing keys of their recipes filled in."""
    whole = _as_json(settings)
    if isinstance(recipe := whole.get(_RECIPE), dict):
        whole[_RECIPE] = _with_defaults(recipe)
    if isinstance(recipes := whole.get(_RECIPES), list):
        whole[_RECIPES] = [_with_defaults(r) if isinstance(r, dict) else r for r in recipes]
    return whole


def _with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe with its missing keys filled in.

    A key that no longer exists stays, and so differs. Where a default is None today and was a
    number with the same meaning before, that number is filled in.
    """
    import pydantic

    from hwnas.recipe import Recipe

    try:
        filled = recipe_values(pydantic.TypeAdapter(Recipe).validate_json(json.dumps(values)))
    except (pydantic.ValidationError, ConfigError):
        return values
    merged: dict[str, Any] = _merged(values, filled)
    deploy, train, task = (merged.get(table, {}) for table in ("deploy", "train", "task"))
    if deploy.get("finetune_epochs") is None and deploy.get("finetune_minutes") is None:
        deploy["finetune_epochs"] = 1.0
    if train.get("shift_pixels") is None and task.get("name") in _OF_IMAGES:
        train["shift_pixels"] = 1
    return merged


def _merged(values: Any, filled: Any) -> Any:
    if isinstance(values, dict) and isinstance(filled, dict):
        return {
            key: _merged(values[key], filled[key])
            if key in values and key in filled
            else values.get(key, filled.get(key))
            for key in values.keys() | filled.keys()
        }
    if isinstance(values, list) and isinstance(filled, list) and len(values) == len(filled):
        return [_merged(*pair) for pair in zip(values, filled, strict=True)]
    return values


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            value = {str(place): item for place, item in enumerate(value)}
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _shown(values: Mapping[str, Any], key: str) -> str:
    text = repr(values[key]) if key in values else "not there"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return found


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
