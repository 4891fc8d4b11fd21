"""Tasks and spaces whose identity differs between processes, as users should not write them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import own_parts
from hwnas.search.data.image_data import ImageData
from hwnas.search.tasks.classification import Classification, classification

COUNT = itertools.count()


class Delegating:
    """Task that delegates everything but its `repr` to a classification task."""

    def __init__(self, data: ImageData) -> None:
        self._task: Classification = classification(data)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._task, name)


class Addressed(Delegating):
    """Task with the default ``repr``, which contains its address."""


class Ordered(Delegating):
    """Task whose ``repr`` contains a set, whose order differs between processes."""

    def __repr__(self) -> str:
        return f"Ordered({ {'ants', 'bees', 'cats', 'dogs', 'eels', 'fish', 'gnus', 'hens'} })"


class Hashed(Delegating):
    """Task whose ``repr`` contains a hash of text, which differs between processes."""

    def __repr__(self) -> str:
        return f"Hashed({hash('ants')})"


class Counted(Delegating):
    """Task whose ``repr`` differs for each instance."""

    def __init__(self, data: ImageData) -> None:
        super().__init__(data)
        self._number = next(COUNT)

    def __repr__(self) -> str:
        return f"Counted({self._number})"


class Fine(Delegating):
    """Task whose ``repr`` identifies it."""

    def __repr__(self) -> str:
        return f"Fine({self._task!r})"


@dataclass(frozen=True)
class WithFunction:
    """Dataclass task with an anonymous function as a field."""

    task: Classification
    weigh: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "task":
            raise AttributeError(name)
        return getattr(self.task, name)


def with_function(data: ImageData) -> WithFunction:
    return WithFunction(classification(data), lambda loss: loss)


class HashedDials(own_parts.Dials):
    """Space whose fingerprint contains a hash of text."""

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"version": hash("ants")}
