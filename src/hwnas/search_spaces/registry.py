"""Registry of search spaces, and construction of a space from a recipe.

To add a space, write a package here in which a module has a tuple ``PLUGINS``, as in
`resnet.space`, and a function for Python in `hwnas.spaces`. The blocks of a family are made in its
package: those of ``mobilenet``, for example, in `mobilenet.network`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwnas.errors import ConfigError
from hwnas.plugin import build
from hwnas.registry import Registry
from hwnas.search_spaces.space.choice_space import ChoiceSpace
from hwnas.search_spaces.space.product import ProductSpace
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.space.space_plugin import SpacePlugin

__all__ = ["ROLES", "SPACES", "SpaceEntry", "joint_space", "named_space", "spaces"]

SPACES: Registry[Callable[..., SearchSpace]] = Registry("space", __package__)
"""Spaces of networks by name: factories that are called with ``image_shape`` and ``outputs``, and
with the options of the recipe."""

ROLES: Registry[Callable[..., ChoiceSpace]] = Registry("role", __package__)
"""Spaces that a search may combine with a space of networks, by role."""


@dataclass(frozen=True)
class SpaceEntry:
    """Search space with one of its presets, at one image size.

    Attributes:
        name: Value of ``name`` in a recipe's table ``[space]``.
        preset: Value of ``preset`` in that table; empty if the space has no presets.
        image_shape: Height, width and channels of the images that this entry is computed for.
        choices: Number of choices.
        size: Number of distinct networks.
    """

    name: str
    preset: str
    image_shape: tuple[int, int, int]
    choices: int
    size: int


def spaces() -> list[SpaceEntry]:
    """Return an entry for each preset of each shipped space."""
    plugins = [SPACES.plugin(name) for name in SPACES]
    found = [
        (_example(plugin.name, preset, image_shape), preset, image_shape)
        for plugin in plugins
        if isinstance(plugin, SpacePlugin)
        for preset, image_shape in plugin.examples.items()
    ]
    return [
        SpaceEntry(space.name, preset, image_shape, len(space.choices), space.size())
        for space, preset, image_shape in found
    ]


def _example(name: str, preset: str, image_shape: tuple[int, int, int]) -> SearchSpace:
    options = {"preset": preset} if preset else {}
    return SPACES[name](image_shape, outputs=10, **options)


def named_space(
    name: str,
    image_shape: tuple[int, int, int],
    outputs: int,
    options: Mapping[str, Any],
    folder: Path = Path(),
    table: str = "space",
    maps: bool = False,
    upscale: int | None = None,
    tasks: Mapping[str, int] | None = None,
) -> SearchSpace:
    """Return the search space that a recipe names.

    Args:
        name: Short name of a space or ``"package.module:object"``.
        image_shape: Height, width and channels.
        outputs: Length of the output vector.
        options: Other keys of the recipe's table.
        folder: Folder that relative paths start from.
        table: Name of that table in messages.
        maps: Whether the networks have to give maps (outputs, h, w) instead of a vector; a factory
            that takes no ``maps`` is not told.
        upscale: Number of times that the maps have to be as large as the images, in each direction;
            None to leave it to the options. A factory that takes no ``upscale`` is not told.
        tasks: Number of outputs of each task by its name, if the outputs are those of several tasks
            side by side. A factory that takes no ``tasks`` is not told.

    Raises:
        ConfigError: The name or an option is unknown.
    """
    factory = SPACES.find(name, table)
    given = _given(image_shape, outputs, folder, maps, upscale, tasks)
    return build(table, factory, options, **given)


def _given(
    image_shape: tuple[int, int, int],
    outputs: int,
    folder: Path,
    maps: bool,
    upscale: int | None,
    tasks: Mapping[str, int] | None,
) -> dict[str, Any]:
    """Return the arguments of a factory that follow from the data and the task."""
    given = {"image_shape": image_shape, "outputs": outputs, "folder": folder, "maps": maps}
    some = {"upscale": upscale, "tasks": tasks}
    return given | {name: value for name, value in some.items() if value is not None}


def joint_space(
    names: Sequence[str],
    image_shape: tuple[int, int, int],
    outputs: int,
    options: Mapping[str, Any],
    folder: Path = Path(),
    network: SearchSpace | Callable[..., SearchSpace] | None = None,
    maps: bool = False,
    upscale: int | None = None,
    tasks: Mapping[str, int] | None = None,
) -> SearchSpace:
    """Return the space of networks, or its product with the spaces of further roles.

    Args:
        names: Name of the space of networks, then names of roles; each is a short name or
            ``"package.module:object"``.
        image_shape: Height, width and channels.
        outputs: Length of the output vector.
        options: Other keys of the recipe's table: options of the space of networks, and for each
            role a table by its name.
        folder: Folder that relative paths start from.
        network: Space of networks or its factory, in place of the one that is named.
        maps: Whether the networks have to give maps; this and ``upscale`` are as in `named_space`.
        upscale: Factor of the maps' height and width.
        tasks: Number of outputs of each task; as in `named_space`.

    Raises:
        ConfigError: A name or an option is unknown, or the names cannot be combined.
    """
    first, *others = names
    if first in ROLES:
        raise ConfigError(
            f"space.name starts with {first!r}, which builds no networks; put a space of "
            f"networks before it: {', '.join(SPACES)}"
        )
    if len(set(others)) < len(others):
        raise ConfigError(f"space.name {list(names)} has a role twice; remove one")
    tables = {name: name.rpartition(":")[2] for name in others}
    own = {key: value for key, value in options.items() if key not in tables.values()}
    space = _network_space(
        network or SPACES.find(first, "space"),
        own,
        _given(image_shape, outputs, folder, maps, upscale, tasks),
    )
    roles: dict[str, ChoiceSpace] = {}
    for name, table in tables.items():
        given = options.get(table, {})
        if not isinstance(given, Mapping):
            raise ConfigError(f"space.{table} is {given!r}; expected a table, [space.{table}]")
        made = build(f"space.{table}", ROLES.find(name, "role of a space"), given)
        roles[made.name] = made
    return ProductSpace(space, roles) if roles else space


def _network_space(
    found: SearchSpace | Callable[..., SearchSpace],
    options: Mapping[str, Any],
    given: Mapping[str, Any],
) -> SearchSpace:
    if not isinstance(found, SearchSpace):
        return build("space", found, options, **given)
    if options:
        raise ConfigError(
            f"[space] has {', '.join(options)}, but the space is an object, which has its options "
            "already; remove them"
        )
    return found
