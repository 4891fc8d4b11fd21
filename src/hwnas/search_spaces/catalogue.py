"""The spaces that hwnas ships, at the image sizes that their presets are for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hwnas.plugin import build, resolve
from hwnas.search_spaces import SPACES, SearchSpace
from hwnas.search_spaces.cells import CellSpace
from hwnas.search_spaces.mobilenet import MobileNetSpace

__all__ = ["SpaceEntry", "named_space", "spaces"]

_EXAMPLES = {
    "tiny": (8, 8, 1),
    "small": (32, 32, 3),
    "large": (224, 224, 3),
    "mobilenet-v3-large": (224, 224, 3),
}


@dataclass(frozen=True)
class SpaceEntry:
    """A space as it is for some size of images.

    Attributes:
        name: For ``[space] name``.
        preset: For ``[space] preset``; empty where a space has none.
        image_shape: Height, width and channels of the images it was made for here.
        choices: How many decisions there are.
        size: How many different networks.
    """

    name: str
    preset: str
    image_shape: tuple[int, int, int]
    choices: int
    size: int


def spaces() -> list[SpaceEntry]:
    """Every shipped space, once for each of its presets."""
    found: list[tuple[SearchSpace, str, tuple[int, int, int]]] = [
        (MobileNetSpace.from_preset(preset, image_shape, outputs=10), preset, image_shape)
        for preset, image_shape in _EXAMPLES.items()
    ]
    cells = CellSpace()
    found.append((cells, "", cells.image_shape))
    return [
        SpaceEntry(space.name, preset, image_shape, len(space.choices), space.size())
        for space, preset, image_shape in found
    ]


def named_space(
    name: str, image_shape: tuple[int, int, int], outputs: int, options: Mapping[str, Any]
) -> SearchSpace:
    """A space by its name in a recipe.

    Args:
        name: A short name or ``"package.module:object"``.
        image_shape: Height, width and channels.
        outputs: Length of the output vector.
        options: The other keys of the recipe's table.

    Raises:
        ConfigError: The name or an option is unknown.
    """
    factory = resolve("space", name, SPACES)
    return build("space", factory, options, image_shape=image_shape, outputs=outputs)
