"""State that a kernel's file keeps from one call to the next, as a digest for each of its names.

A kernel may keep workspaces, tables and packed weights: calls with the same inputs leave these
unchanged. A value that is new after every call, whatever the inputs, counts calls. A result can
depend on it after more calls than any test makes.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

__all__ = ["digests", "moving"]

_MOST_OBJECTS = 20_000  # objects of one name; any more are not inspected
_MOST_BYTES = 2**20  # largest tensor or array whose values are inspected
_CALLS = 6  # a value that recurs within so many, as with two alternating buffers, does not count
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, range, slice)


def moving(call: Callable[[], Any], names: Mapping[str, Any], paths: tuple[str, ...]) -> list[str]:
    """Return names of a module whose values are new ones after each of several calls.

    Args:
        call: Function that makes the call that is repeated.
        names: Values of the module, by name.
        paths: Files whose objects are inspected; objects of other files are left out.
    """
    seen = [digests(names, paths)]
    for _ in range(_CALLS):
        call()
        seen.append(digests(names, paths))
    return sorted(name for name in seen[0] if len({each.get(name) for each in seen}) == len(seen))


def digests(names: Mapping[str, Any], paths: tuple[str, ...]) -> dict[str, int]:
    """Return a digest for each name, which changes with any object that the name reaches."""
    return {
        name: hash(tuple(_Walk(paths).tokens(value)))
        for name, value in list(names.items())
        if not name.startswith("__")
    }


class _Walk:
    """Walk through all objects that are held, each once, in a reproducible order."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._paths = paths
        self._seen: dict[int, int] = {}
        self._kept_alive: list[Any] = []  # so that no other object gets the same id

    def tokens(self, value: Any) -> Iterator[Any]:
        """Yield the types and values of objects, and how the objects refer to each other."""
        left = [value]
        while left:
            each = left.pop()
            if id(each) in self._seen:
                yield self._seen[id(each)]
                continue
            if isinstance(each, _PLAIN):
                yield f"{type(each).__name__} {each!r}"
                continue
            self._seen[id(each)] = len(self._seen)
            self._kept_alive.append(each)
            if len(self._seen) > _MOST_OBJECTS:
                return
            yield type(each).__name__
            yield from self._values(each)
            left += reversed(list(self._held(each)))

    def _values(self, value: Any) -> Iterator[Any]:
        if isinstance(value, torch.Tensor):
            if value.numel() * value.itemsize <= _MOST_BYTES and value.layout == torch.strided:
                flat = value.detach().clone(memory_format=torch.contiguous_format).view(-1)
                yield flat.view(torch.uint8).cpu().numpy().tobytes()
        elif isinstance(value, np.ndarray) and value.nbytes <= _MOST_BYTES:
            yield value.tobytes() if value.dtype != object else len(value)
        elif isinstance(value, types.GeneratorType) and value.gi_frame is not None:
            yield value.gi_frame.f_lasti

    def _held(self, value: Any) -> Iterator[Any]:
        """Yield what an object holds, except for what belongs to libraries."""
        if isinstance(value, types.ModuleType | weakref.ref | types.CodeType | types.FrameType):
            if getattr(value, "__file__", None) in self._paths:
                yield from (v for k, v in vars(value).items() if not k.startswith("__"))
        elif isinstance(value, type):
            if value.__module__ not in ("builtins", "typing") and self._is_own_class(value):
                yield from (v for k, v in list(vars(value).items()) if not k.startswith("__"))
        elif isinstance(value, types.FunctionType):
            if value.__code__.co_filename in self._paths:
                yield from (value.__closure__, value.__defaults__, value.__kwdefaults__)
                yield vars(value)
        elif isinstance(value, types.GeneratorType):
            if value.gi_frame is not None and value.gi_code.co_filename in self._paths:
                yield from value.gi_frame.f_locals.values()
        elif isinstance(value, torch.Tensor):
            yield vars(value) if hasattr(value, "__dict__") else None
        elif type(value).__module__ in ("builtins", "itertools") and hasattr(value, "__next__"):
            yield self._reduced(value)
        else:
            yield from islice(gc.get_referents(value), _MOST_OBJECTS)

    def _is_own_class(self, value: type) -> bool:
        functions = [f for f in vars(value).values() if isinstance(f, types.FunctionType)]
        return not functions or any(f.__code__.co_filename in self._paths for f in functions)

    def _reduced(self, iterator: Any) -> Any:
        """Return the position of one of Python's own iterators, or None if it is unknown."""
        try:
            reduced = iterator.__reduce__()
        except TypeError:
            return None
        self._kept_alive.append(reduced)
        return reduced[1:]
