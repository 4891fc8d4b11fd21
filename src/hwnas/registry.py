"""Registries of plug-ins: the implementations that recipes, commands and Python code can name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar

from hwnas.errors import ConfigError
from hwnas.plugin import resolve

__all__ = ["Plugin", "Registry"]

T = TypeVar("T")


@dataclass(frozen=True)
class Plugin(Generic[T]):
    """Descriptor of one implementation.

    Attributes:
        kind: Kind of the plug-in, such as ``"sampler"``.
        name: Name in recipes and on the command line.
        value: Implementation: for most kinds a factory, which gets its options from the recipe.
        summary: Description in one line.
        extra: Dependency group to install, as in ``pip install 'hwnas[extra]'``; empty for none.
        usual: Whether it precedes the others, which are in alphabetical order.
    """

    kind: str
    name: str
    value: T
    summary: str = ""
    extra: str = ""
    usual: bool = False


class Registry(Mapping[str, T], Generic[T]):
    """Plug-ins of one kind, by name.

    A module of hwnas offers its plug-ins as ``PLUGINS``, a tuple; it needs no other registration.
    An installed package offers a plug-in as an entry point of the registry's `group`: a `Plugin`,
    or its implementation alone. A user's own object is named ``"package.module:object"``, which
    only `find` accepts.

    Args:
        kind: Kind of the plug-ins.
        places: Modules of hwnas that offer them; a package stands for all modules in it, at any
            depth, and all of them are imported.
    """

    def __init__(self, kind: str, *places: str) -> None:
        self.kind = kind
        self._places = places

    @property
    def group(self) -> str:
        """Group of entry points, such as ``"hwnas.samplers"``."""
        kind = self.kind.replace(" ", "_")
        return f"hwnas.{kind[:-1]}ies" if kind.endswith("y") else f"hwnas.{kind}s"

    def __getitem__(self, name: str) -> T:
        return self.plugin(name).value

    def __iter__(self) -> Iterator[str]:
        yield from self._shipped
        yield from (name for name in self._installed if name not in self._shipped)

    def __len__(self) -> int:
        return len({*self._shipped, *self._installed})

    def __contains__(self, name: object) -> bool:
        return name in self._shipped or name in self._installed

    def plugin(self, name: str) -> Plugin[T]:
        """Return the descriptor of a name.

        Raises:
            KeyError: There is no such plug-in.
            ConfigError: An installed package offers it, but cannot be imported.
        """
        if name in self._shipped:
            return self._shipped[name]
        return self._loaded(self._installed[name])

    def find(self, name: str, where: str | None = None) -> T:
        """Return the implementation that a recipe or a user names.

        Args:
            name: Name of a plug-in, or ``"package.module:object"``.
            where: What is named, for messages, such as ``"train.sampling"``; the kind if None.

        Raises:
            ConfigError: The name is unknown, its module fails to import or has no such object.
        """
        return resolve(where or self.kind, name, self)

    @cached_property
    def _shipped(self) -> dict[str, Plugin[T]]:
        modules = [module for place in self._places for module in _modules(place)]
        offered = [plugin for module in modules for plugin in vars(module).get("PLUGINS", ())]
        ours = [plugin for plugin in offered if plugin.kind == self.kind]
        ours.sort(key=lambda plugin: (not plugin.usual, plugin.name))
        return {plugin.name: plugin for plugin in ours}

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _loaded(self, point: EntryPoint) -> Plugin[T]:
        try:
            found: Any = point.load()
        except Exception as error:  # another package's module may raise any exception; name it
            package = point.dist.name if point.dist is not None else point.module
            raise ConfigError(
                f"{self.kind} {point.name!r} of the installed package {package} does not import "
                f"({type(error).__name__}: {error}); update or uninstall {package}"
            ) from error
        return found if isinstance(found, Plugin) else Plugin(self.kind, point.name, found)


def _modules(place: str) -> Iterator[ModuleType]:
    """Yield a module or, for a package, also the modules in it, at any depth."""
    root = importlib.import_module(place)
    yield root
    for each in pkgutil.walk_packages(getattr(root, "__path__", ()), f"{place}."):
        yield importlib.import_module(each.name)
