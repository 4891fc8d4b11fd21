"""Configuration classes: dataclasses that know which of their fields were given."""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from hwnas.errors import ConfigError
from hwnas.hashing import default_of, differing_fields
from hwnas.plugin import closest

__all__ = ["config_class", "given_fields"]

T = TypeVar("T")
_GIVEN = "_given"


def config_class(cls: type[T]) -> type[T]:
    """Let the instances of a dataclass remember which fields were passed to the constructor.

    A value that equals the default then counts as chosen, so that a plan does not replace it.
    Equality, hashes and copies of an instance do not depend on it. The constructor raises a
    `ConfigError` if there is no such field, or if a value of the wrong type makes it fail.
    """
    create: Any = cls.__init__
    names = [field.name for field in fields(cls) if field.init]  # type: ignore[arg-type]

    @functools.wraps(create)
    def __init__(self: Any, *values: Any, **options: Any) -> None:
        for name in options:
            if name not in names:
                raise ConfigError(f"{cls.__name__} has no field {name!r}; {closest(name, names)}")
        given = {**dict(zip(names, values, strict=False)), **options}
        try:
            create(self, *values, **options)
        except ConfigError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise _mistyped(cls, given) or error from error
        object.__setattr__(self, _GIVEN, frozenset(given))

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


def _mistyped(cls: type, given: dict[str, Any]) -> ConfigError | None:
    """Return the error for the first value of another type than its field's; None if all fit."""
    import pydantic

    hints = get_type_hints(cls)
    for name, value in given.items():
        try:
            pydantic.TypeAdapter(hints[name]).validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            told = error.errors()[0]["msg"].removeprefix("Input should be ")
            return ConfigError(f"{cls.__name__}: {name} is {value!r}; expected {told}")
    return None


def given_fields(value: Any) -> dict[str, Any]:
    """Return the fields that were passed to the constructor of a dataclass, by name.

    Of an instance that does not remember them, these are the fields that differ from their
    defaults. A field that was passed as None, its default, is left out.
    """
    given: frozenset[str] | None = getattr(value, _GIVEN, None)
    if given is None:
        return differing_fields(value)
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    unset = {f.name for f in fields(value) if found[f.name] is None and default_of(f) is None}
    return {name: found[name] for name in found if name in given and name not in unset}
