"""Names by which another process can import an object, and factories of objects without one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["importable_name", "returning", "shipped_name"]

T = TypeVar("T")


def importable_name(value: object) -> str | None:
    """Return ``"package.module:object"`` for a class or function; None if it has no such name.

    Objects of a notebook or script (``__main__``), and those defined inside functions, have none.
    Nor have those of a module that only this script can import, since it lies beside the script and
    not in the current folder: commands look for modules there.
    """
    if isinstance(value, partial):
        return None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is value and not _beside_the_script(module) else None


def _beside_the_script(module: str) -> bool:
    top = sys.modules[module.partition(".")[0]]
    file = getattr(top, "__file__", None)
    if file is None:
        return False
    folder = Path(file).resolve().parents[1 if hasattr(top, "__path__") else 0]
    return folder == Path(sys.path[0]).resolve() and folder != Path.cwd()


def shipped_name(value: object, registry: Mapping[str, Any]) -> str | None:
    """Return the short name of a plug-in's implementation; None if it is not of the registry."""
    return next((name for name in registry if registry[name] is value), None)


def returning(value: T) -> Callable[[], T]:
    """Return a factory that returns an object."""
    return lambda: value
