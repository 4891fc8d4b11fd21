"""Space of SimpleNets, hand-designed stacks of convolutions and max pooling, with elastic channels.

From Hasanpour et al., "Lets keep it simple, Using simple architectures to outperform deeper and
more complex architectures" (2016). Layers, channels, kernels and pooling are those of the authors'
CIFAR file, with three differences. Every convolution is normalised, so that none needs a bias, as
in the authors' own PyTorch version (the file leaves out the last three). The last pooling is over
the whole feature map at any size of images. Dropout follows convolutions, never pooling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.plugin import resolve
from hwnas.search_spaces.configured_space import ConfiguredSpace, Indices
from hwnas.search_spaces.cost_model.operator_counts import PartTable
from hwnas.search_spaces.map_sizes import Size, aspect_of
from hwnas.search_spaces.simplenet.config import Group, SimpleNetConfig
from hwnas.search_spaces.simplenet.network import SimpleNet, classifier, layer
from hwnas.search_spaces.simplenet.part_counts import chosen_parts, part_table
from hwnas.search_spaces.simplenet.presets import PRESETS
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.space_plugin import DIGITS, SMALL, SpacePlugin
from hwnas.search_spaces.supernet.block_space import rows
from hwnas.search_spaces.supernet.block_specs import BlockSpec

__all__ = ["PLUGINS", "SimpleNetSpace", "simplenet"]


class SimpleNetSpace(ConfiguredSpace[SimpleNetConfig]):
    """Space of plain stacks of convolutions, with the width of each layer and depth of each group.

    Args:
        config: Fixed and elastic dimensions; if None, networks up to the published one of 5.48
            million weights, at 32 pixels.
    """

    name = "simplenet"
    added_later = ("aspect",)
    traceable = True

    def __init__(self, config: SimpleNetConfig | None = None) -> None:
        super().__init__(config or SimpleNetConfig(PRESETS["full"].groups, (24, 32)))

    @classmethod
    def from_preset(
        cls, preset: str, image_shape: tuple[int, int, int] = (32, 32, 3), outputs: int = 10
    ) -> SimpleNetSpace:
        """Return a space by the name of its preset; see `simplenet`."""
        return simplenet(image_shape, outputs, preset=preset)

    def decisions(self) -> Iterator[Choice]:
        """Yield the choices of the resolution, and of each group and layer."""
        yield Choice("resolution", self.config.resolution)
        for g, group in enumerate(self.config.groups):
            yield Choice(f"group{g}.depth", group.depth)
            for b in range(len(group.channels)):
                when = ChoiceCondition.deeper(f"group{g}.depth", group.depth, b)
                yield Choice(f"group{g}.layer{b}.width", group.width, when)

    @property
    def aspect(self) -> Size:
        """Height and width of the inputs, as a ratio."""
        return self.config.aspect

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Layers, which depend on their channels and those before, and classifier."""
        found, inputs = [], "channels"
        for g, group in enumerate(self.config.groups):
            for b, kernel_size in enumerate(group.kernel_size):
                channels = {"inputs": inputs, "outputs": f"group{g}.layer{b}.channels"}
                make = partial(layer, kernel_size)
                found.append(BlockSpec(f"groups.{g}.{b}", make, channels, f"group{g}.depth", b + 1))
                inputs = channels["outputs"]
            inputs = f"group{g}.channels"
        last = BlockSpec("classifier", partial(classifier, self.config), {"inputs": inputs})
        return *found, last

    def values(self, architecture: Architecture) -> dict[str, Any]:
        """Return the options, and the channels of the images, each layer and each group's output.

        An absent layer of elastic width has 0 channels.
        """
        found = super().values(architecture)
        found["channels"] = self.config.in_channels
        for g, layers in enumerate(self._channels):
            for width, channels, options in layers:
                found[channels] = options[found[width]]
            last = found[f"group{g}.depth"] - 1
            found[f"group{g}.channels"] = found[f"group{g}.layer{last}.channels"]
        return found

    @cached_property
    def _channels(self) -> list[list[tuple[str, str, dict[float | None, int]]]]:
        """Name of the width, name of the channels, and channels by width of each group's layers."""
        return [
            [
                (
                    f"group{g}.layer{b}.width",
                    f"group{g}.layer{b}.channels",
                    {None: 0, **dict(zip(group.width, group.options(b), strict=True))},
                )
                for b in range(len(group.channels))
            ]
            for g, group in enumerate(self.config.groups)
        ]

    def frame(self, blocks: Mapping[str, nn.Module]) -> SimpleNet:
        """See `BlockSpace.frame`."""
        return SimpleNet(rows(blocks, "groups"), blocks["classifier"], self.config.dropout)

    def part_table(self) -> PartTable:
        """Return the operator counts of the layers, and of the pooling after each group."""
        return part_table(self.config)

    def chosen_parts(self, indices: Indices) -> npt.NDArray[np.int64]:
        """See `ConfiguredSpace.chosen_parts`."""
        return chosen_parts(self.config, indices)


def simplenet(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str | None = None,
    groups: tuple[Group, ...] | None = None,
    resolution: tuple[int, ...] | None = None,
    dropout: float = 0.0,
) -> SimpleNetSpace:
    """Return the space of a recipe's ``[space] name = "simplenet"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        preset: ``"tiny"`` (images below 16 pixels), ``"slim"`` (up to the published network of 310
            thousand weights), ``"full"`` (up to that of 5.48 million), ``"simplenet-310k"`` or
            ``"simplenet-5m"`` (those networks alone); if None, ``"tiny"`` below 16 pixels,
            ``"slim"`` below 32, else ``"full"``.
        groups: Groups in place of the preset's; this and all that follow are as in
            `SimpleNetConfig`.
        resolution: Options for the longer side of the input, in pixels; its aspect ratio is that of
            the images.
        dropout: Dropout probability after each convolution.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, or the images are too small.
    """
    side, aspect = max(image_shape[:2]), aspect_of(image_shape)
    automatic = "tiny" if side < 16 else "slim" if side < 32 else "full"
    chosen = resolve("preset of space simplenet", preset or automatic, PRESETS)
    config = SimpleNetConfig(
        chosen.groups if groups is None else groups,
        chosen.resolution(side, aspect) if resolution is None else resolution,
        image_shape[2],
        outputs,
        dropout,
        aspect,
    )
    return SimpleNetSpace(config)


PLUGINS = (
    SpacePlugin(
        "space",
        "simplenet",
        simplenet,
        "Plain stacks of convolutions (SimpleNet)",
        examples={
            "tiny": DIGITS,
            "slim": (28, 28, 1),
            "full": SMALL,
            "simplenet-310k": SMALL,
            "simplenet-5m": SMALL,
        },
    ),
)
