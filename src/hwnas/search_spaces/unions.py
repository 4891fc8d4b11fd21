"""Union of several search spaces, made from the tables of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hwnas.errors import ConfigError
from hwnas.search_spaces.registry import named_space
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.space.space_plugin import SMALL, SpacePlugin
from hwnas.search_spaces.space.union import UnionSpace

__all__ = ["PLUGINS", "union"]

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
    maps: bool = False,
) -> UnionSpace:
    """Return the space of a recipe's ``[space] name = "union"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, or number of maps, e.g. the number of classes.
        preset: ``"cpu"``: residual networks that CPUs run fast on small images: inverted
            bottlenecks for low latencies, dense networks for higher ones.
        members: One table a member, like ``[space]`` itself, in place of the preset's. The names of
            its choices begin with its ``label``, or else its preset, or else its name.
        resolution: Options for the input's height and width, for members that have none of their
            own; None stands for the longer side of the images if a preset is given.
        folder: Folder that relative paths start from.
        maps: Whether the networks have to give maps.

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
        made[label] = named_space(
            name, image_shape, outputs, options, folder, "space.members", maps
        )
    return UnionSpace(made)


PLUGINS = (
    SpacePlugin(
        "space", "union", union, "Union of several spaces of networks", examples={"cpu": SMALL}
    ),
)
