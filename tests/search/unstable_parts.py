"""What a user should not write: tasks and spaces that are others in each process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import own_parts
from hwnas.search.data import ImageData
from hwnas.search.task import Classification, classification

COUNT = itertools.count()


class Delegating:
    """A task that is another one in all that counts."""

    def __init__(self, data: ImageData) -> None:
        self._task: Classification = classification(data)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._task, name)


class Addressed(Delegating):
    """Has the ``repr`` that every object has."""


class Ordered(Delegating):
    """Its ``repr`` has a set in it, whose order is another in each process."""

    def __repr__(self) -> str:
        return f"Ordered({ {'ants', 'bees', 'cats', 'dogs', 'eels', 'fish', 'gnus', 'hens'} })"


class Hashed(Delegating):
    """Its ``repr`` has a hash of text in it, which is another in each process."""

    def __repr__(self) -> str:
        return f"Hashed({hash('ants')})"


class Counted(Delegating):
    """Its ``repr`` is another one each time that it is made."""

    def __init__(self, data: ImageData) -> None:
        super().__init__(data)
        self._number = next(COUNT)

    def __repr__(self) -> str:
        return f"Counted({self._number})"


class Fine(Delegating):
    """Its ``repr`` tells all."""

    def __repr__(self) -> str:
        return f"Fine({self._task!r})"


@dataclass(frozen=True)
class WithFunction:
    """A dataclass, but one of its fields is a function without a name."""

    task: Classification
    weigh: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "task":
            raise AttributeError(name)
        return getattr(self.task, name)


def with_function(data: ImageData) -> WithFunction:
    return WithFunction(classification(data), lambda loss: loss)


class HashedDials(own_parts.Dials):
    """A space whose fingerprint has a hash of text in it."""

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"version": hash("ants")}
