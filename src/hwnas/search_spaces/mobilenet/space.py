"""MobileNetV3-like networks with elastic depth, kernel, expansion, width and resolution.

The blocks are those of MobileNetV3 (Howard et al., ICCV 2019); the elastic dimensions those of
once-for-all (Cai et al., ICLR 2020) and, for width, of BigNAS (Yu et al., ECCV 2020).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hwnas.plugin import resolve
from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.choices import Choice, Option, When
from hwnas.search_spaces.layers import Activation, scaled_channels
from hwnas.search_spaces.mobilenet.config import MobileNetConfig, Stage
from hwnas.search_spaces.mobilenet.network import MobileNet, build_network
from hwnas.search_spaces.mobilenet.operators import block_shape
from hwnas.search_spaces.mobilenet.presets import PRESETS
from hwnas.search_spaces.mobilenet.published import indices_of, rows_of, table_of
from hwnas.search_spaces.mobilenet.steps import chosen_parts, depth_of, part_table
from hwnas.search_spaces.space import SearchSpace, StageOutline
from hwnas.search_spaces.steps import PartTable
from hwnas.search_spaces.tabular import TabularSpace

__all__ = ["MobileNetSpace", "mobilenet"]


class MobileNetSpace(SearchSpace):
    """Inverted-bottleneck networks; one class for 8x8 digits, 28x28 and 224x224 photographs.

    Choices with a single option are fixed and do not appear in `choices`.

    Args:
        config: What is elastic and what is fixed; once-for-all's space at 224 pixels if None.
    """

    name = "mobilenet"

    def __init__(self, config: MobileNetConfig | None = None) -> None:
        self.config = PRESETS["large"]((224, 224, 3)) if config is None else config

    @classmethod
    def from_preset(
        cls, preset: str, image_shape: tuple[int, int, int] = (224, 224, 3), outputs: int = 1000
    ) -> MobileNetSpace:
        """A space by name; see `mobilenet`."""
        return mobilenet(image_shape, outputs, preset=preset)

    @cached_property
    def _all_choices(self) -> dict[str, Choice]:
        config = self.config
        found = [Choice("resolution", config.resolution), Choice("width", config.width)]
        for s, stage in enumerate(config.stages):
            found.append(Choice(f"stage{s}.depth", stage.depth))
            for b in range(max(stage.depth)):
                deep_enough = tuple(d for d in stage.depth if d > b)
                when = None if b < min(stage.depth) else When(f"stage{s}.depth", deep_enough)
                decisions: dict[str, tuple[Option, ...]] = {
                    "kernel_size": stage.kernel_size,
                    "expand_ratio": stage.expand_ratio,
                }
                if stage.operators:
                    decisions = {"operator": stage.operators}
                for name, options in decisions.items():
                    found.append(Choice(f"stage{s}.block{b}.{name}", options, when))
        return {choice.name: choice for choice in found}

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The elastic decisions."""
        return tuple(c for c in self._all_choices.values() if len(c.options) > 1)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The whole configuration; later additions only where they are made use of."""
        found = dataclasses.asdict(self.config)
        for stage in found["stages"]:
            if not stage["operators"]:
                del stage["operators"]
        for name in ("activation", "feature_bias"):
            if found[name] == getattr(MobileNetConfig, name):
                del found[name]
        return found

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Channels, height and width of one input image."""
        side = int(self._option(architecture.as_dict(), "resolution"))
        return self.config.in_channels, side, side

    def outline(self, architecture: Architecture) -> tuple[StageOutline, ...]:
        """The stages of inverted bottlenecks."""
        values = self.check(architecture).as_dict()
        width = float(self._option(values, "width"))
        return tuple(
            StageOutline(
                scaled_channels(stage.channels, width),
                stage.stride,
                tuple(self._blocks(s, values)),
            )
            for s, stage in enumerate(self.config.stages)
        )

    def _blocks(self, s: int, values: Mapping[str, Option]) -> Iterator[tuple[int, float]]:
        """Kernel sizes and expansion ratios of a stage's blocks that are there."""
        for b in range(int(self._option(values, f"stage{s}.depth"))):
            place = f"stage{s}.block{b}"
            if not self.config.stages[s].operators:
                kernel_size = int(self._option(values, f"{place}.kernel_size"))
                yield kernel_size, self._option(values, f"{place}.expand_ratio")
            elif (shape := block_shape(str(self._value(values, f"{place}.operator")))) is not None:
                yield shape.kernel_size, shape.expand_ratio

    def build(self, architecture: Architecture) -> MobileNet:
        """A plain module: (N, C, H, W) float32 -> (N, outputs) float32."""
        values = self.check(architecture).as_dict()
        return build_network(self.config, {n: self._value(values, n) for n in self._all_choices})

    def blocks(self, architecture: Architecture) -> Mapping[str, Hashable]:
        """See `SearchSpace.blocks`: stem, blocks, head and classifier; all have some width."""
        values = {**self._single, **dict(architecture.values)}
        width = values["width"]
        found: dict[str, Hashable] = {"stem": width}
        for depth, places in self._places:
            for place, names in places[: int(values[depth])]:
                found[place] = (width, *[values[name] for name in names])
        found["head"] = found["classifier"] = width
        return found

    @cached_property
    def _single(self) -> dict[str, Option]:
        """The options of choices that have only one."""
        return {n: c.options[0] for n, c in self._all_choices.items() if len(c.options) == 1}

    @cached_property
    def _places(self) -> list[tuple[str, list[tuple[str, tuple[str, ...]]]]]:
        """Of each stage the choice of its depth, and its blocks with the choices that they have."""
        found = []
        for s, stage in enumerate(self.config.stages):
            decisions = ("operator",) if stage.operators else ("kernel_size", "expand_ratio")
            blocks = [
                (f"stages.{s}.{b}", tuple(f"stage{s}.block{b}.{name}" for name in decisions))
                for b in range(max(stage.depth))
            ]
            found.append((f"stage{s}.depth", blocks))
        return found

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]]:
        """See `SearchSpace.parts`: blocks, and the rest as one part."""
        return self._part_table, chosen_parts(self.config, self._indices(codes))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Blocks that are there."""
        return depth_of(self.config, self._indices(codes))

    def published(
        self, codes: npt.NDArray[np.int64]
    ) -> tuple[TabularSpace, npt.NDArray[np.int64]] | None:
        """The same networks as rows of a table, for ``ofa-w1.0`` and ``fbnet`` at its size."""
        table = table_of(self.config)
        return None if table is None else (table, rows_of(self.config, self._indices(codes)))

    def architecture_of(self, row: npt.ArrayLike) -> Architecture:
        """The architecture that a published table means by its integers.

        Args:
            row: As the table's space encodes it, see `published`, of shape (positions,).

        Raises:
            ConfigError: The space is in no published table, or the table has no such network.
        """
        indices = indices_of(self.config, np.asarray(row))
        elastic = (choice for choice in self.choices if choice.name in indices)
        return self.architecture({c.name: c.options[indices[c.name]] for c in elastic})

    @cached_property
    def _part_table(self) -> PartTable:
        return part_table(self.config)

    def _indices(self, codes: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        only = np.zeros(len(codes), dtype=np.int64)
        elastic = {choice.name: codes[:, i] for i, choice in enumerate(self.choices)}
        return {name: elastic.get(name, only) for name in self._all_choices}

    def _value(self, values: Mapping[str, Option], name: str) -> Option:
        return values.get(name, self._all_choices[name].options[0])

    def _option(self, values: Mapping[str, Option], name: str) -> float:
        value = self._value(values, name)
        assert not isinstance(value, str)
        return value


def mobilenet(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str | None = None,
    stages: tuple[Stage, ...] | None = None,
    resolution: tuple[int, ...] | None = None,
    width: tuple[float, ...] | None = None,
    stem_channels: int | None = None,
    stem_stride: int | None = None,
    head_channels: int | None = None,
    feature_channels: int | None = None,
    dropout: float | None = None,
    activation: Activation | None = None,
    feature_bias: bool | None = None,
) -> MobileNetSpace:
    """The space of a recipe's ``[space] name = "mobilenet"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        preset: ``"tiny"`` (images up to 16 pixels), ``"small"`` (up to 96), ``"large"``
            (once-for-all's space), ``"mobilenet-v3-large"`` (that one network), or a published
            space: ``"ofa-w1.0"``, ``"fbnet"``, ``"proxyless"``; chosen by the size of the images
            if None.
        stages: As in `MobileNetConfig`, in place of the preset's; so are all that follow.
        resolution: Options for the input's height and width, in pixels.
        width: Options for the width multiplier.
        stem_channels: Channels of the first convolution.
        stem_stride: Stride of the first convolution.
        head_channels: Channels of the last convolution.
        feature_channels: Length of the vector before the last linear layer, 0 for none.
        dropout: Probability before the last linear layer.
        activation: After the first convolution and the last one.
        feature_bias: Whether the layer of ``feature_channels`` has a bias.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, or the images are too small.
    """
    side = max(image_shape[:2])
    automatic = "tiny" if side <= 16 else "small" if side <= 96 else "large"
    config = resolve("preset of space mobilenet", preset or automatic, PRESETS)(image_shape)
    overrides = {
        "stages": stages,
        "resolution": resolution,
        "width": width,
        "stem_channels": stem_channels,
        "stem_stride": stem_stride,
        "head_channels": head_channels,
        "feature_channels": feature_channels,
        "dropout": dropout,
        "activation": activation,
        "feature_bias": feature_bias,
    }
    given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    return MobileNetSpace(
        dataclasses.replace(config, in_channels=image_shape[2], outputs=outputs, **given)
    )
