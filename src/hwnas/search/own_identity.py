"""Whether something of the user's own is the same in every process, so that results may name it."""

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

from hwnas.content import content_hash
from hwnas.errors import ConfigError
from hwnas.search.evaluate import Evaluator

__all__ = ["check_identity", "check_key", "described"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PATIENCE_S = 120.0
_IN_ANOTHER_PROCESS = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from hwnas.search.own_identity import described
value, attribute = pickle.load(sys.stdin.buffer)
sys.stdout.write("hwnas:" + described(value, attribute))
"""


def check_identity(
    what: str,
    value: object,
    attribute: str = "",
    again: Callable[[], object] | None = None,
    hint: str = "make it a frozen dataclass, or give it a __repr__ that tells all it depends on",
) -> None:
    """Refuse something of the user's own that cannot be told from others of its kind.

    Every stored result names what it depends on by a hash. One that is another in each process
    would make all results useless as soon as they are stored. What hwnas ships is not looked at,
    nor what consists of plain values.

    Args:
        what: It is, for the message, e.g. ``"task 'own:task'"``.
        value: It.
        attribute: Of the value, by which it is named; the value itself if empty.
        again: Makes it once more; the second one must be named as the first one is.
        hint: What to do.

    Raises:
        ConfigError: It is named otherwise when it is made again or in another process.
    """
    if type(value).__module__.partition(".")[0] == "hwnas":
        return
    named = getattr(value, attribute) if attribute else value
    if not isinstance(named, str) and _is_plain(named):
        return
    if _ADDRESS.search(repr(named)):
        raise ConfigError(f"{what} is described by its address in memory ({_short(named)}); {hint}")
    here = described(value, attribute)
    if again is not None and described(again(), attribute) != here:
        raise ConfigError(f"{what} is another each time that it is made ({_short(named)}); {hint}")
    if type(value).__module__ != "__main__" and _elsewhere(what, value, attribute) != here:
        raise ConfigError(f"{what} is another in each process ({_short(named)}); {hint}")


def check_key(name: str, evaluator: Evaluator) -> None:
    """Refuse an evaluator of the user's own whose key is no text, or an address in memory.

    Evaluators hold all images, so none is sent to another process only for this.

    Args:
        name: Of the evaluator in the recipe.
        evaluator: It.

    Raises:
        ConfigError: That is so.
    """
    key: object = getattr(evaluator, "key", None)
    if not isinstance(key, str) or not key or _ADDRESS.search(key):
        raise ConfigError(
            f"evaluator {name!r} has the key {_short(key)}; expected text that is the same in "
            "every process and tells all that its scores depend on"
        )
    if key != described(evaluator, "key"):
        raise ConfigError(
            f"evaluator {name!r} has another key each time that it is asked ({_short(key)}); let "
            "it tell all that the scores depend on, and nothing else"
        )


def described(value: object, attribute: str) -> str:
    """Return by what stored results name a value: a hash of it, or an attribute that it computes.

    Args:
        value: It; what it remembers of the attribute is forgotten.
        attribute: Its name; empty for a hash of the value itself.
    """
    if not attribute:
        return content_hash(value)
    if isinstance(inspect.getattr_static(type(value), attribute, None), cached_property):
        value.__dict__.pop(attribute, None)
    return str(getattr(value, attribute))


def _is_plain(value: object) -> bool:
    """Whether a value consists of what has the same hash everywhere."""
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
    """By what another process names a value, whose text hashes are others."""
    try:
        sent: bytes = pickle.dumps(sys.path) + pickle.dumps((value, attribute))
    except Exception as error:  # a user's class may refuse in any way
        raise ConfigError(
            f"{what} cannot be sent to worker processes ({_first_line(error)}); define it at the "
            "top of a module, with fields that pickle"
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
            f"{what} cannot be loaded in another process ({said[-1] if said else 'it died'}); "
            "define it at the top of a module beside the recipe or on the Python path"
        )
    return found[2]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
