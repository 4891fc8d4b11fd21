"""Functions that name a plug-in of hwnas together with its options, with types and completion."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import is_dataclass
from functools import wraps
from typing import Any, ParamSpec

from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.recipe import Named

__all__ = ["named", "named_with_options"]

P = ParamSpec("P")
_PLUGIN = "__hwnas_plugin__"


def named_with_options(
    name: str, factory: Callable[..., Any], given: Collection[str]
) -> Callable[..., Named]:
    """Return a function that takes the options of a plug-in, by the parameters of its factory.

    Args:
        name: Name of the plug-in in recipes.
        factory: Factory of the plug-in.
        given: Parameters of the factory that a run sets itself, such as the shape of the images.

    Returns:
        The function. Where a part of a search is expected, the function itself stands for the
        plug-in without options; see `named`.
    """
    signature = inspect.signature(factory)
    own = [each for each in signature.parameters.values() if each.name not in given]

    @wraps(factory)
    def settings(*positional: Any, **options: Any) -> Named:
        names = [each.name for each in own]
        if len(positional) > len(names):
            raise ConfigError(f"{name} has {len(names)} options; {len(positional)} were given")
        for option in options:
            if option not in names:
                raise ConfigError(f"{name} has no option {option!r}; {closest(option, names)}")
        return Named(name, {**dict(zip(names, positional, strict=False)), **options})

    public: Any = settings
    public.__doc__ = _without(_documented(factory), given)
    public.__signature__ = signature.replace(parameters=own, return_annotation=Named)
    setattr(public, _PLUGIN, name)
    return settings


def named(value: object) -> object:
    """Return the name of a plug-in for a function of `named_with_options`; other values as given.

    So ``sampler=hwnas.samplers.Guided`` means the same as ``sampler=hwnas.samplers.Guided()``.
    """
    name = getattr(value, _PLUGIN, None) if callable(value) else None
    return Named(name) if isinstance(name, str) else value


def _documented(factory: Callable[..., Any]) -> str:
    """Return the docstring of a factory; that of a class with the fields of its bases."""
    text = inspect.cleandoc(factory.__doc__ or "")
    bases = factory.__mro__[1:] if isinstance(factory, type) else ()
    for base in bases:
        _, heading, inherited = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        if heading and is_dataclass(base):
            text += ("" if "Attributes:\n" in text else "\n\nAttributes:") + f"\n{inherited}"
    return text


def _without(docstring: str, names: Collection[str]) -> str:
    """Return a docstring without the descriptions of some arguments."""
    text = inspect.cleandoc(docstring)
    for name in names:
        text = re.sub(rf"^    {name}: .*\n?(?:        .*\n?)*", "", text, flags=re.MULTILINE)
    return re.sub(r"^Args:\n(?!    )\n?", "", text, flags=re.MULTILINE).rstrip()
