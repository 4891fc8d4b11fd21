"""Checks that a user's own object has the same hash in every process.

Stored results refer to the objects that they depend on by such hashes.
"""

from __future__ import annotations

import inspect
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hwnas.errors import ConfigError
from hwnas.hashing import content_hash
from hwnas.search.evaluation.evaluate import Evaluator

__all__ = ["check_identity", "check_key", "described"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PATIENCE_S = 120.0
_IN_ANOTHER_PROCESS = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from hwnas.search.evaluation.own_identity import described
value, attribute = pickle.load(sys.stdin.buffer)
sys.stdout.write("hwnas:" + described(value, attribute))
"""


def check_identity(
    what: str,
    value: object,
    attribute: str = "",
    again: Callable[[], object] | None = None,
    hint: str = "make it a frozen dataclass, or give it a __repr__ that shows all it depends on",
) -> None:
    """Raise if a user's own object has no stable identity.

    Every stored result refers to its inputs by a hash. If the hash of an input differed in each
    process, no stored result could ever be reused. Objects of hwnas itself and objects that consist
    of plain values are not checked.

    Args:
        what: Name of the object, for the message, e.g. ``"task 'own:task'"``.
        value: Object to check.
        attribute: Attribute of the object that identifies it; the object itself if empty.
        again: Function that makes the object once more; both must have the same identity.
        hint: Remedy, for the message.

    Raises:
        ConfigError: The identity differs when the object is made again or in another process.
    """
    if type(value).__module__.partition(".")[0] == "hwnas":
        return
    named = getattr(value, attribute) if attribute else value
    if not isinstance(named, str) and _is_plain(named):
        return
    if _ADDRESS.search(repr(named)):
        raise ConfigError(
            f"{what} is identified by its address in memory ({_short(named)}); {hint}"
        )
    here = described(value, attribute)
    if again is not None and described(again(), attribute) != here:
        raise ConfigError(
            f"the identity of {what} differs each time it is created ({_short(named)}); {hint}"
        )
    if type(value).__module__ != "__main__" and _elsewhere(what, value, attribute) != here:
        raise ConfigError(
            f"the identity of {what} differs between processes ({_short(named)}); {hint}"
        )


def check_key(name: str, evaluator: Evaluator) -> None:
    """Raise if the key of a user's own evaluator is not stable text.

    The key is not compared with that in another process, since evaluators hold all images and are
    too large to send for that.

    Args:
        name: Name of the evaluator in the recipe.
        evaluator: Evaluator to check.

    Raises:
        ConfigError: The key is empty, is not text, holds an address in memory, or changes from one
            access to the next.
    """
    key: object = getattr(evaluator, "key", None)
    if not isinstance(key, str) or not key or _ADDRESS.search(key):
        raise ConfigError(
            f"evaluator {name!r} has the key {_short(key)}; expected text that is the same in "
            "every process and includes everything that its scores depend on"
        )
    if key != described(evaluator, "key"):
        raise ConfigError(
            f"evaluator {name!r} returns a different key each time ({_short(key)}); the key must "
            "include everything that the scores depend on, and nothing else"
        )


def described(value: object, attribute: str) -> str:
    """Return the identity of a value in stored results: its hash, or one of its attributes as text.

    Args:
        value: Value to identify. If the attribute is a cached property, it is computed anew.
        attribute: Name of the attribute; empty for a hash of the value itself.
    """
    if not attribute:
        return content_hash(value)
    if isinstance(inspect.getattr_static(type(value), attribute, None), cached_property):
        value.__dict__.pop(attribute, None)
    return str(getattr(value, attribute))


def _is_plain(value: object) -> bool:
    """Return whether a value consists of plain values, which have the same hash in any process."""
    if value is None or isinstance(value, str | int | float | bool | np.ndarray):
        return True
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.keys())) and all(map(_is_plain, value.values()))
    if is_dataclass(value) and not isinstance(value, type):
        return all(_is_plain(getattr(value, each.name)) for each in fields(value))
    return False


def _elsewhere(what: str, value: object, attribute: str) -> str:
    """Return the identity of a value in another process, one with another string hash seed."""
    try:
        sent: bytes = pickle.dumps(sys.path) + pickle.dumps((value, attribute))
    except Exception as error:  # pickling a user's class may raise any error
        raise ConfigError(
            f"{what} cannot be sent to worker processes ({_first_line(error)}); define it at the "
            "top of a module, with fields that can be pickled"
        ) from error
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", _IN_ANOTHER_PROCESS],
        input=sent,
        capture_output=True,
        timeout=_PATIENCE_S,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    found = done.stdout.decode(errors="replace").rpartition("hwnas:")
    if done.returncode or not found[1]:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise ConfigError(
            f"{what} cannot be loaded in another process "
            f"({said[-1] if said else 'the process died'}); define it at the top of "
            "a module beside the recipe or on the Python path"
        )
    return found[2]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
