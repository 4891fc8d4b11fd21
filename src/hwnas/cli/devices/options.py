"""Options shared by commands on devices, and functions that parse their values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.errors import ConfigError

if TYPE_CHECKING:
    from hwnas.predictors.devices.store import DeviceStore
    from hwnas.search_spaces import SearchSpace

__all__ = [
    "Classes",
    "Image",
    "Input",
    "Preset",
    "Space",
    "Store",
    "sizes_of",
    "space_of",
    "store_of",
]

Store = Annotated[
    Path | None,
    typer.Option(help="Folder of device profiles; $HWNAS_HOME/devices if not given"),
]
Space = Annotated[
    str | None,
    typer.Option(help='Name of a space, "module:object", a recipe or the folder of a run'),
]
Image = Annotated[str, typer.Option(help="Height x width x channels of the space's images")]
Classes = Annotated[int, typer.Option(min=1, help="Number of outputs of the networks")]
Preset = Annotated[str | None, typer.Option(help="Preset of the space")]
Input = Annotated[
    str | None,
    typer.Option("--input", help="Shape of the model's input without the batch, e.g. 3x224x224"),
]


def store_of(folder: Path | None) -> DeviceStore:
    """Return the device store of --store."""
    from hwnas.predictors.devices.store import DeviceStore

    return DeviceStore.default() if folder is None else DeviceStore(folder)


def space_of(text: str, preset: str | None, image: str, classes: int) -> SearchSpace:
    """Return the search space of --space, --preset, --image and --classes."""
    from hwnas.api.devices import search_space
    from hwnas.recipe import Named

    named = text if preset is None else Named(text, {"preset": preset})
    return search_space(named, _image(image), classes)


def _image(text: str) -> tuple[int, int, int]:
    sizes = sizes_of(text, "--image")
    if sizes is None or len(sizes) != 3:
        raise ConfigError(f"--image is {text!r}; expected height x width x channels, e.g. 64x64x3")
    return sizes[0], sizes[1], sizes[2]


def sizes_of(text: str | None, option: str) -> tuple[int, ...] | None:
    """Return the sizes in an option such as --input; None for None."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"{option} is {text!r}; expected sizes such as 3x224x224")
    return tuple(map(int, parts))
