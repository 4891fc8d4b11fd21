"""List of the search spaces that hwnas ships, and construction of a space from a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwnas.errors import ConfigError
from hwnas.plugin import build, resolve
from hwnas.search_spaces import ROLES, SPACES, ChoiceSpace, ProductSpace, SearchSpace

__all__ = ["SpaceEntry", "joint_space", "named_space", "spaces"]

_DIGITS, _SMALL, _LARGE = (8, 8, 1), (32, 32, 3), (224, 224, 3)
_EXAMPLES: Mapping[str, Mapping[str, tuple[int, int, int]]] = {
    "mobilenet": {
        "tiny": _DIGITS,
        "small": _SMALL,
        "large": _LARGE,
        "mobilenet-v3-large": _LARGE,
        "mobilenet-v3-small": _LARGE,
        "ofa-w1.0": _LARGE,
        "fbnet": _LARGE,
        "proxyless": _LARGE,
    },
    "resnet": {
        "tiny": _DIGITS,
        "small": _SMALL,
        "inverted": _SMALL,
        "compact": _LARGE,
        "mixed": _LARGE,
        "resnet-50": _LARGE,
    },
    "simplenet": {
        "tiny": _DIGITS,
        "slim": (28, 28, 1),
        "full": _SMALL,
        "simplenet-310k": _SMALL,
        "simplenet-5m": _SMALL,
    },
    "hybrid": {
        "tiny": _DIGITS,
        "small": _SMALL,
        "large": _LARGE,
        "lowformer-b0": _LARGE,
    },
    "vit": {
        "tiny": _DIGITS,
        "small": _SMALL,
        "low-rank": _SMALL,
        "large": _LARGE,
        "deit-tiny": _LARGE,
    },
    "union": {"cpu": _LARGE},
    "nasbench201": {"": _SMALL},
    "channels": {"": _SMALL},
}
"""Image shape (height, width, channels) of each shipped space, by space and preset.

The size of the space ``elastic`` depends on the user's model, so it is not listed.
"""


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
    found = [
        (_example(name, preset, image_shape), preset, image_shape)
        for name, presets in _EXAMPLES.items()
        for preset, image_shape in presets.items()
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
) -> SearchSpace:
    """Return the search space that a recipe names.

    Args:
        name: Short name of a space or ``"package.module:object"``.
        image_shape: Height, width and channels.
        outputs: Length of the output vector.
        options: Other keys of the recipe's table.
        folder: Folder that relative paths start from.
        table: Name of that table in messages.

    Raises:
        ConfigError: The name or an option is unknown.
    """
    factory = resolve(table, name, SPACES)
    return build(table, factory, options, image_shape=image_shape, outputs=outputs, folder=folder)


def joint_space(
    names: Sequence[str],
    image_shape: tuple[int, int, int],
    outputs: int,
    options: Mapping[str, Any],
    folder: Path = Path(),
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

    Raises:
        ConfigError: A name or an option is unknown, or the names cannot be combined.
    """
    network, *others = names
    if network in ROLES:
        raise ConfigError(
            f"space.name starts with {network!r}, which builds no networks; put a space of "
            f"networks before it: {', '.join(SPACES)}"
        )
    if len(set(others)) < len(others):
        raise ConfigError(f"space.name {list(names)} has a role twice; remove one")
    tables = {name: name.rpartition(":")[2] for name in others}
    own = {key: value for key, value in options.items() if key not in tables.values()}
    space = named_space(network, image_shape, outputs, own, folder)
    roles: dict[str, ChoiceSpace] = {}
    for name, table in tables.items():
        given = options.get(table, {})
        if not isinstance(given, Mapping):
            raise ConfigError(f"space.{table} is {given!r}; expected a table, [space.{table}]")
        made = build(f"space.{table}", resolve("role of a space", name, ROLES), given)
        roles[made.name] = made
    return ProductSpace(space, roles) if roles else space
