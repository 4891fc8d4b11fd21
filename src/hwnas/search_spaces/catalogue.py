"""List of the search spaces that hwnas ships, and construction of a space from a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwnas.errors import ConfigError
from hwnas.plugin import build, resolve
from hwnas.search_spaces.any_model import named_elastic
from hwnas.search_spaces.cells import nasbench201
from hwnas.search_spaces.hybrid import hybrid
from hwnas.search_spaces.mobilenet import mobilenet
from hwnas.search_spaces.resnet import resnet
from hwnas.search_spaces.simplenet import simplenet
from hwnas.search_spaces.space.choice_space import ChoiceSpace
from hwnas.search_spaces.space.product import ProductSpace
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.space.training_space import recipe_space
from hwnas.search_spaces.space.union import UnionSpace
from hwnas.search_spaces.supernet.channels import channels
from hwnas.search_spaces.vit import vit

__all__ = ["ROLES", "SPACES", "SpaceEntry", "joint_space", "named_space", "spaces", "union"]

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
    "union": {"cpu": _SMALL},
    "nasbench201": {"": _SMALL},
    "channels": {"": _SMALL},
}
"""Image shape (height, width, channels) of each shipped space, by space and preset.

The size of the space ``elastic`` depends on the user's model, so it is not listed.
"""


_DENSE_STAGE = {"stride": 2, "depth": (1,), "expand_ratio": (1.0,), "block": "basic"}

_UNIONS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    # Inverted bottlenecks for low latencies, dense networks of one block a stage for higher ones:
    # at 32 pixels they have 0.5 to 10 and 3.5 to 29 million multiply-accumulates.
    "cpu": (
        {"name": "resnet", "preset": "inverted"},
        {
            "name": "resnet",
            "preset": "compact",
            "width": (0.5, 1.0, 1.5),
            "stages": [{"channels": channels, **_DENSE_STAGE} for channels in (32, 64, 128)],
        },
    )
}
"""Tables of the member spaces of a union, by name of the preset."""


def union(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str | None = None,
    members: Sequence[Mapping[str, Any]] | None = None,
    resolution: Sequence[int] | None = None,
    folder: Path = Path(),
) -> UnionSpace:
    """Return the space of a recipe's ``[space] name = "union"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        preset: ``"cpu"``: residual networks that CPUs run fast on small images: inverted
            bottlenecks for low latencies, dense networks for higher ones.
        members: One table a member, like ``[space]`` itself, in place of the preset's. The names of
            its choices begin with its ``label``, or else its preset, or else its name.
        resolution: Options for the input's height and width, for members that have none of their
            own; None stands for the longer side of the images if a preset is given.
        folder: Folder that relative paths start from.

    Raises:
        ConfigError: A preset, a name or an option is unknown, or two members have the same label.
    """
    if members is None:
        known = f"expected one of {', '.join(_UNIONS)}, or tables [[space.members]]"
        if preset is None or preset not in _UNIONS:
            raise ConfigError(f"space.preset is {preset!r}; {known}")
        resolution = resolution or (max(image_shape[:2]),)
        members = _UNIONS[preset]
    made: dict[str, SearchSpace] = {}
    for table in members:
        options = dict(table) if resolution is None else {"resolution": tuple(resolution), **table}
        name = str(options.pop("name", ""))
        label = str(options.pop("label", options.get("preset", name)))
        if label in made:
            raise ConfigError(f"space.members has two called {label!r}; give one another label")
        made[label] = named_space(name, image_shape, outputs, options, folder, "space.members")
    return UnionSpace(made)


SPACES: Mapping[str, Callable[..., SearchSpace]] = {
    "channels": channels,
    "elastic": named_elastic,
    "hybrid": hybrid,
    "mobilenet": mobilenet,
    "nasbench201": nasbench201,
    "resnet": resnet,
    "simplenet": simplenet,
    "union": union,
    "vit": vit,
}

# Spaces that a search may combine with a space of networks, by role.
ROLES: Mapping[str, Callable[..., ChoiceSpace]] = {"recipe": recipe_space}


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
