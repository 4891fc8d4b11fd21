"""Resolution of names in recipes: short names of hwnas, or ``"module:object"`` of the user."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hwnas.errors import ConfigError

if TYPE_CHECKING:
    import pydantic

__all__ = ["UNNAMED", "build", "closest", "imports_from", "in_words_of_toml", "resolve"]

T = TypeVar("T")

UNNAMED = "python"
"""Word before the colon in a recipe that a Python program wrote, for an object without a name."""


def closest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the closest known name and the list of all."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known: {', '.join(names)}"


@contextlib.contextmanager
def imports_from(folder: Path) -> Iterator[None]:
    """Let names in a recipe refer to modules in ``folder``, beside the recipe."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def resolve(kind: str, name: str, known: Mapping[str, T]) -> T:
    """Return the object that a name in a recipe refers to.

    Args:
        kind: Kind of object, as the user would call it ("space", "task", ...); for messages.
        name: Key of ``known``, or ``"package.module:object"`` for a user's own object.
        known: Objects that hwnas ships, by short name.

    Returns:
        The shipped or imported object.

    Raises:
        ConfigError: The name is unknown, its module fails to import or has no such object.
    """
    if ":" not in name:
        if name in known:
            return known[name]
        raise ConfigError(
            f"unknown {kind} {name!r}; {closest(name, known)}; "
            'or "package.module:object" for your own'
        )
    module_name, _, attribute = name.partition(":")
    if module_name == UNNAMED:
        raise ConfigError(
            f"the {kind} of this run is an object of a Python program, without a name; continue "
            f"the run in Python, with hwnas.open(RUN, {attribute}=...)"
        )
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise any exception; name it
        raise ConfigError(
            f"{kind} {name!r}: module {module_name!r} does not import "
            f"({type(error).__name__}: {error}). "
            "It must be on the Python path or in the folder of the recipe"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [item for item in vars(found) if not item.startswith("_")]
            raise ConfigError(
                f"{kind} {name!r}: {module_name!r} has no {part!r}; {closest(part, public)}"
            )
        found = getattr(found, part)
    resolved: T = found
    return resolved


def build(kind: str, factory: Callable[..., T], options: Mapping[str, Any], **given: Any) -> T:
    """Call a factory with options from a recipe, checked against its signature and annotations.

    Args:
        kind: Table of the recipe ("space", ...), for messages.
        factory: Class or function; its keyword parameters are the options of the table.
        options: Options of the recipe, as plain TOML values.
        **given: Arguments that hwnas itself passes.

    Raises:
        ConfigError: An option is unknown, missing or of the wrong type.
    """
    import pydantic  # imported here: measuring on a small device needs names only

    signature = inspect.signature(factory)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    settable = [name for name in signature.parameters if name not in given]
    for key in options:
        if key not in settable and not open_ended:
            raise ConfigError(f"[{kind}] has no key {key!r}; {closest(key, settable)}")
    accepted = {k: v for k, v in given.items() if open_ended or k in signature.parameters}
    try:
        return _call_checked(factory, {**accepted, **options})
    except pydantic.ValidationError as error:
        raise ConfigError(_message(error, f"[{kind}]")) from error


def _message(error: pydantic.ValidationError, where: str) -> str:
    """Return one line about a pydantic error: the key, the given value and what was expected."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "value_error":  # raised by a class of hwnas, with a complete message
        return f"{where} {key}: {first['ctx']['error']}"
    if first["type"].startswith("missing"):
        return f"{where} {key} is missing; it has no default"
    if first["type"] == "unexpected_keyword_argument":
        return f"{where} has no key {key!r}"
    return f"{where} {key} is {first['input']!r}; expected {in_words_of_toml(first)}"


def in_words_of_toml(error: Mapping[str, Any]) -> str:
    """Return what a pydantic error says was expected, in the words of TOML."""
    words: str = error["msg"]
    return _EXPECTED.get(error["type"]) or words.removeprefix("Input should be ")


_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dataclass_type": "a table of keys",
    "dataclass_exact_type": "a table of keys",
    "dict_type": "a table of keys",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "string_type": "text in quotes",
    "tuple_type": "a list",
}
"""Expected types by pydantic's error type."""


_STRICT_KEYS: pydantic.ConfigDict = {"arbitrary_types_allowed": True, "extra": "forbid"}


def _call_checked(factory: Callable[..., T], arguments: Mapping[str, Any]) -> T:
    """Call a function or class with arguments that are converted to its annotations."""
    import pydantic

    check = pydantic.validate_call(config=_STRICT_KEYS)
    if not isinstance(factory, type):
        function = factory if _is_function(factory) else factory.__call__  # type: ignore[operator]
        result: T = check(function)(**arguments)
        return result
    made: Any = object.__new__(factory)  # in two steps, since pydantic checks only functions
    check(factory.__init__)(made, **arguments)  # type: ignore[misc]
    instance: T = made
    return instance


def _is_function(factory: Callable[..., Any]) -> bool:
    """Return whether a factory is a function or method, in contrast to an object with a call."""
    return inspect.isroutine(factory) or isinstance(factory, functools.partial)
