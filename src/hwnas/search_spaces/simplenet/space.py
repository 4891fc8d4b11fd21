"""SimpleNet, made by hand of nothing but convolutions and max pooling, with elastic channels.

From Hasanpour et al., "Lets keep it simple, Using simple architectures to outperform deeper and
more complex architectures" (2016). Layers, channels, kernels and pooling are those of the authors'
CIFAR file. It departs in this: every convolution is normalised, as in the authors' own PyTorch
version (the file leaves out the last three), so that none needs a bias; the last pooling is over
the whole feature map at any size of images; dropout follows convolutions, never pooling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from hwnas.plugin import resolve
from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.choices import Choice, Option, When
from hwnas.search_spaces.layers import ConvNormAct
from hwnas.search_spaces.simplenet.config import PRESETS, Group, SimpleNetConfig
from hwnas.search_spaces.simplenet.steps import chosen_parts, depth_of, part_table
from hwnas.search_spaces.space import SearchSpace
from hwnas.search_spaces.steps import PartTable

__all__ = ["SimpleNetSpace", "simplenet"]


class SimpleNet(nn.Module):
    """One network of a `SimpleNetSpace`: (N, C, H, W) -> (N, outputs)."""

    def __init__(self, groups: list[nn.Sequential], classifier: nn.Module, dropout: float) -> None:
        super().__init__()
        self.groups = nn.ModuleList(groups)
        self.halve = nn.MaxPool2d(2, ceil_mode=True)  # as Caffe does, which the paper used
        self.dropout = nn.Dropout(dropout)
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Outputs (N, outputs) of images (N, C, H, W)."""
        x = images
        for g, group in enumerate(self.groups):
            assert isinstance(group, nn.Sequential)
            x = self.halve(x) if g else x
            for layer in group:
                x = self.dropout(layer(x))
        outputs: Tensor = self.classifier(x.amax((2, 3)))
        return outputs


class SimpleNetSpace(SearchSpace):
    """Plain stacks of convolutions: each layer's width, each group's depth, the resolution.

    Choices with a single option are fixed and do not appear in `choices`.

    Args:
        config: What is elastic and what is fixed; networks up to the published one of 5.48 million
            weights, at 32 pixels, if None.
    """

    name = "simplenet"

    def __init__(self, config: SimpleNetConfig | None = None) -> None:
        self.config = config or SimpleNetConfig(PRESETS["full"].groups, (24, 32))

    @classmethod
    def from_preset(
        cls, preset: str, image_shape: tuple[int, int, int] = (32, 32, 3), outputs: int = 10
    ) -> SimpleNetSpace:
        """A space by name; see `simplenet`."""
        return simplenet(image_shape, outputs, preset=preset)

    @cached_property
    def _all_choices(self) -> dict[str, Choice]:
        found = [Choice("resolution", self.config.resolution)]
        for g, group in enumerate(self.config.groups):
            found.append(Choice(f"group{g}.depth", group.depth))
            for b in range(len(group.channels)):
                deep_enough = tuple(depth for depth in group.depth if depth > b)
                when = None if b < min(group.depth) else When(f"group{g}.depth", deep_enough)
                found.append(Choice(f"group{g}.layer{b}.width", group.width, when))
        return {choice.name: choice for choice in found}

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The elastic decisions."""
        return tuple(c for c in self._all_choices.values() if len(c.options) > 1)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The whole configuration."""
        return dataclasses.asdict(self.config)

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Channels, height and width of one input image."""
        side = int(self._option(architecture.as_dict(), "resolution"))
        return self.config.in_channels, side, side

    def build(self, architecture: Architecture) -> SimpleNet:
        """A plain module: (N, C, H, W) float32 -> (N, outputs) float32."""
        config, values = self.config, self.check(architecture).as_dict()
        groups, inputs = [], config.in_channels
        for g, group in enumerate(config.groups):
            layers = []
            for b in range(int(self._option(values, f"group{g}.depth"))):
                width = self._option(values, f"group{g}.layer{b}.width")
                channels = group.options(b)[group.width.index(width)]
                layers.append(
                    ConvNormAct(inputs, channels, group.kernel_size[b], activation="relu")
                )
                inputs = channels
            groups.append(nn.Sequential(*layers))
        return SimpleNet(groups, nn.Linear(inputs, config.outputs), config.dropout)

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]]:
        """See `SearchSpace.parts`: layers, and what pools after each group."""
        return self._part_table, chosen_parts(self.config, self._indices(codes))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Convolutions that are there."""
        return depth_of(self.config, self._indices(codes))

    @cached_property
    def _part_table(self) -> PartTable:
        return part_table(self.config)

    def _indices(self, codes: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        only = np.zeros(len(codes), dtype=np.int64)
        elastic = {choice.name: codes[:, i] for i, choice in enumerate(self.choices)}
        return {name: elastic.get(name, only) for name in self._all_choices}

    def _option(self, values: Mapping[str, Option], name: str) -> float:
        value = values.get(name, self._all_choices[name].options[0])
        assert not isinstance(value, str)
        return value


def simplenet(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str | None = None,
    groups: tuple[Group, ...] | None = None,
    resolution: tuple[int, ...] | None = None,
    dropout: float = 0.0,
) -> SimpleNetSpace:
    """The space of a recipe's ``[space] name = "simplenet"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        preset: ``"tiny"`` (images below 16 pixels), ``"slim"`` (up to the published network of 310
            thousand weights), ``"full"`` (up to that of 5.48 million), ``"simplenet-310k"`` or
            ``"simplenet-5m"`` (those networks alone); if None, ``"tiny"`` below 16 pixels,
            ``"slim"`` below 32, else ``"full"``.
        groups: As in `SimpleNetConfig`, in place of the preset's; so are all that follow.
        resolution: Options for the input's height and width, in pixels.
        dropout: Probability after each convolution.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, or the images are too small.
    """
    side = max(image_shape[:2])
    automatic = "tiny" if side < 16 else "slim" if side < 32 else "full"
    chosen = resolve("preset of space simplenet", preset or automatic, PRESETS)
    config = SimpleNetConfig(
        chosen.groups if groups is None else groups,
        chosen.resolution(side) if resolution is None else resolution,
        image_shape[2],
        outputs,
        dropout,
    )
    return SimpleNetSpace(config)
