"""Content hashes of values, equal in every process for equal values."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Set
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np

from hwnas.errors import ConfigError

__all__ = ["content_hash", "default_of", "differing_fields"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def content_hash(*parts: Any) -> str:
    """Return a hash of 16 hexadecimal digits that is equal for equal values, in every process.

    Values that JSON cannot represent are hashed by their content. A dataclass: its class and the
    fields that differ from their defaults, so that a new field with a default changes no hash.
    An array: its dtype, shape and bytes. A function: its qualified name. Any other value: its
    ``repr``.

    Raises:
        ConfigError: The ``repr`` of a part contains its address in memory.
    """
    return hashlib.sha256(json.dumps(parts, default=_described).encode()).hexdigest()[:16]


def differing_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, by name."""
    return {
        field.name: found
        for field in fields(value)
        if not _equal(found := getattr(value, field.name), default_of(field))
    }


def default_of(field: Field[Any]) -> Any:
    """Return the default of a dataclass's field; `MISSING` if it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)  # arrays of different shapes cannot be compared by ==
    return one is other or (type(one) is type(other) and bool(np.all(one == other)))


def _described(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__qualname__, **differing_fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value, key=repr)
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "__array__"):
        array = np.ascontiguousarray(value)
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        return {"array": f"{array.dtype}{array.shape} {digest}"}
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, partial):
        return {"partial": value.func, "args": value.args, "keywords": value.keywords}
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    text = repr(value)
    if _ADDRESS.search(text):
        raise ConfigError(
            f"objects of class {type(value).__qualname__} cannot be distinguished: the repr is an "
            "address in memory. Make the class a dataclass, or give it a __repr__ that shows all "
            "it depends on"
        )
    return text
