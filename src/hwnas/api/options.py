"""Functions that name a plug-in of hwnas together with its options, with types and completion."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, ParamSpec

from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.recipe import Named

__all__ = ["named_with_options"]

P = ParamSpec("P")


def named_with_options(
    name: str, factory: Callable[..., Any], given: Collection[str]
) -> Callable[..., Named]:
    """Return a function that takes the options of a plug-in, by the parameters of its factory.

    Args:
        name: Name of the plug-in in recipes.
        factory: Factory of the plug-in.
        given: Parameters of the factory that a run sets itself, such as the shape of the images.
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
    public.__doc__ = _without(factory.__doc__ or "", given)
    public.__signature__ = signature.replace(parameters=own, return_annotation=Named)
    return settings


def _without(docstring: str, names: Collection[str]) -> str:
    """Return a docstring without the descriptions of some arguments."""
    text = inspect.cleandoc(docstring)
    for name in names:
        text = re.sub(rf"^    {name}: .*\n?(?:        .*\n?)*", "", text, flags=re.MULTILINE)
    return re.sub(r"^Args:\n(?!    )\n?", "", text, flags=re.MULTILINE).rstrip()
