"""Objects that a Python program gives in place of names in a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeVar

from optuna.samplers import BaseSampler

from hwnas.errors import ConfigError
from hwnas.plugin import UNNAMED, resolve
from hwnas.recipe import Recipe
from hwnas.search import Evaluator, ImageData, Task
from hwnas.search_spaces import SearchSpace

__all__ = ["GivenObjects", "given_object", "is_unnamed", "unnamed", "unnamed_parts"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class GivenObjects:
    """Objects without a name, which a recipe names ``"python:KIND"``.

    Attributes:
        data: Images.
        task: Task, or a factory that is called with ``data``.
        space: Space of the networks, or a factory that is called with ``image_shape`` and
            ``outputs``.
        sampler: Sampler factory.
        evaluator: Evaluator factory.
    """

    data: ImageData | None = None
    task: Task | Callable[..., Task] | None = None
    space: SearchSpace | Callable[..., SearchSpace] | None = None
    sampler: Callable[..., BaseSampler] | None = None
    evaluator: Callable[..., Evaluator] | None = None

    @property
    def kinds(self) -> list[str]:
        """Kinds of the objects that are given."""
        return [each.name for each in fields(self) if getattr(self, each.name) is not None]


def unnamed(kind: str) -> str:
    """Return the name that a recipe has for an object without a name."""
    return f"{UNNAMED}:{kind}"


def is_unnamed(name: object) -> bool:
    """Return whether a name of a recipe stands for an object without a name."""
    return isinstance(name, str) and name.partition(":")[0] == UNNAMED


def unnamed_parts(recipe: Recipe) -> list[str]:
    """Return the kinds of the objects without a name that a recipe needs."""
    search = recipe.search
    names = {"data": recipe.data.source, "task": recipe.task.name, "space": recipe.space.names[0]}
    names |= {"sampler": search.sampler, "evaluator": search.evaluator}
    return [kind for kind, name in names.items() if is_unnamed(name)]


def given_object(kind: str, name: str, given: T) -> T | None:
    """Return the object that stands for a name of the recipe; None if the name stands for itself.

    Args:
        kind: Kind of the object, a field of `GivenObjects`.
        name: Name in the recipe.
        given: Object of the Python program.

    Raises:
        ConfigError: The recipe names an object, but another was given, or none was given for one
            without a name.
    """
    if is_unnamed(name):
        return resolve(kind, name, {}) if given is None else given
    if given is not None:
        raise ConfigError(
            f"the recipe names its {kind}, {name!r}, so {kind} cannot be given as an object; leave "
            "it out, or start another run"
        )
    return None
