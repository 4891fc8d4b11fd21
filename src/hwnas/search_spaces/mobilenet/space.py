"""Space of MobileNetV3-like networks with elastic depth, kernel, expansion, width and resolution.

The blocks are those of MobileNetV3 (Howard et al., ICCV 2019). The elastic dimensions are those of
once-for-all (Cai et al., ICLR 2020) and, for width, of BigNAS (Yu et al., ECCV 2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.search_spaces.checks import OperatorWeights
from hwnas.search_spaces.configured_space import ConfiguredSpace, Indices
from hwnas.search_spaces.cost_model.operator_counts import PartTable
from hwnas.search_spaces.dense_head import DenseHead, DenseNetwork, head_spec, lateral_spec
from hwnas.search_spaces.layers import Activation, scaled_channels
from hwnas.search_spaces.map_sizes import Size, aspect_of
from hwnas.search_spaces.mobilenet.config import MobileNetConfig, Stage
from hwnas.search_spaces.mobilenet.network import MobileNet, block, classifier, head, stem
from hwnas.search_spaces.mobilenet.operators import block_shape
from hwnas.search_spaces.mobilenet.part_counts import chosen_parts, part_table, skipped
from hwnas.search_spaces.mobilenet.presets import PRESETS
from hwnas.search_spaces.mobilenet.published import indices_of, rows_of, table_of
from hwnas.search_spaces.presets import changed, preset_for
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.building import StageOutline
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.space_plugin import DIGITS, LARGE, SMALL, SpacePlugin
from hwnas.search_spaces.supernet.block_space import rows
from hwnas.search_spaces.supernet.block_specs import BlockSpec, Values
from hwnas.search_spaces.tabular import TabularSpace

__all__ = ["PLUGINS", "MobileNetSpace", "mobilenet"]


class MobileNetSpace(ConfiguredSpace[MobileNetConfig]):
    """Space of inverted-bottleneck networks, from 8x8 digits to 224x224 photographs.

    Args:
        config: Fixed and elastic dimensions; once-for-all's space at 224 pixels if None.
    """

    name = "mobilenet"
    added_later = ("activation", "feature_bias", "dense_head", "aspect", "operator_weights")
    traceable = True

    def __init__(self, config: MobileNetConfig | None = None) -> None:
        super().__init__(PRESETS["large"]((224, 224, 3)) if config is None else config)

    @classmethod
    def from_preset(
        cls, preset: str, image_shape: tuple[int, int, int] = (224, 224, 3), outputs: int = 1000
    ) -> MobileNetSpace:
        """Return a space by the name of its preset; see `mobilenet`."""
        return mobilenet(image_shape, outputs, preset=preset)

    def decisions(self) -> Iterator[Choice]:
        """Yield the choices of resolution and width, and of each stage and block."""
        yield Choice("resolution", self.config.resolution)
        yield Choice("width", self.config.width)
        for s, stage in enumerate(self.config.stages):
            yield Choice(f"stage{s}.depth", stage.depth)
            for b in range(max(stage.depth)):
                when = ChoiceCondition.deeper(f"stage{s}.depth", stage.depth, b)
                for name, options in stage.decisions.items():
                    yield Choice(f"stage{s}.block{b}.{name}", options, when)
        if self.config.dense_head is not None:
            yield self.config.dense_head.choice

    @property
    def aspect(self) -> Size:
        """Height and width of the inputs, as a ratio."""
        return self.config.aspect

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Stem, blocks, and head and classifier or dense head; most depend on the width."""
        config, width = self.config, {"width": "width"}
        own = config.operator_weights == "own"
        blocks = [
            BlockSpec(
                f"stages.{s}.{b}",
                partial(block, config, s, b),
                width | {name: f"stage{s}.block{b}.{name}" for name in stage.decisions},
                f"stage{s}.depth",
                b + 1,
                *(("operator", stage.operators) if own and stage.operators else ()),
            )
            for s, stage in enumerate(config.stages)
            for b in range(max(stage.depth))
        ]
        if config.dense_head is not None:
            channels = [
                {w: scaled_channels(stage.channels, w) for w in config.width}
                for stage in config.stages
            ]
            return (
                BlockSpec("stem", partial(stem, config), width),
                *blocks,
                *(lateral_spec(s, channels[s], "width") for s in config.pyramid),
                head_spec(config.dense_head, config.outputs),
            )
        return (
            BlockSpec("stem", partial(stem, config), width),
            *blocks,
            BlockSpec("head", partial(head, config), width),
            BlockSpec("classifier", partial(classifier, config), width),
        )

    def frame(self, blocks: Mapping[str, nn.Module]) -> MobileNet | DenseNetwork:
        """See `BlockSpace.frame`."""
        if self.config.dense_head is not None:
            return DenseNetwork.of(blocks, rows(blocks, "stages"))
        return MobileNet(
            blocks["stem"], rows(blocks, "stages"), blocks["head"], blocks["classifier"]
        )

    @property
    def identity(self) -> dict[str, Any]:
        """Whole configuration; fields that were added later only where they are not the default."""
        found = super().identity
        for stage in found["stages"]:
            if not stage["operators"]:
                del stage["operators"]
        return found

    def outline(self, architecture: Architecture) -> tuple[StageOutline, ...]:
        """Return the stages of inverted bottlenecks."""
        values = self.values(self.check(architecture))
        return tuple(
            StageOutline(
                scaled_channels(stage.channels, values["width"]),
                stage.stride,
                tuple(self._sizes(s, values)),
            )
            for s, stage in enumerate(self.config.stages)
        )

    def _sizes(self, s: int, values: Values) -> Iterator[tuple[int, float]]:
        """Yield kernel size and expansion ratio of each block of a stage."""
        for b in range(values[f"stage{s}.depth"]):
            place = f"stage{s}.block{b}"
            if not self.config.stages[s].operators:
                yield values[f"{place}.kernel_size"], values[f"{place}.expand_ratio"]
            elif (shape := block_shape(values[f"{place}.operator"])) is not None:
                yield shape.kernel_size, shape.expand_ratio

    def part_table(self) -> PartTable:
        """Return the operator counts of the blocks, and of the rest as one part."""
        return part_table(self.config)

    def chosen_parts(self, indices: Indices) -> npt.NDArray[np.int64]:
        """See `ConfiguredSpace.chosen_parts`."""
        return chosen_parts(self.config, indices)

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of blocks of each network, (N,), without skipped ones."""
        return super().depth(codes) - skipped(self.config, self.indices(codes))

    def published(
        self, codes: npt.NDArray[np.int64]
    ) -> tuple[TabularSpace, npt.NDArray[np.int64]] | None:
        """Return the table's space and the networks as its rows, for ``ofa-w1.0`` and ``fbnet``.

        ``fbnet`` has a table at 32 pixels only.
        """
        table = table_of(self.config)
        return None if table is None else (table, rows_of(self.config, self.indices(codes)))

    def architecture_of(self, row: npt.ArrayLike) -> Architecture:
        """Return the architecture of a row of a published table.

        Args:
            row: Codes of the network in the table's space, see `published`, of shape (positions,).

        Raises:
            ConfigError: The space is in no published table, or the table has no such network.
        """
        indices = indices_of(self.config, np.asarray(row))
        elastic = (choice for choice in self.choices if choice.name in indices)
        return self.architecture({c.name: c.options[indices[c.name]] for c in elastic})


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
    dense_head: DenseHead | None = None,
    operator_weights: OperatorWeights | None = None,
    maps: bool = False,
) -> MobileNetSpace:
    """Return the space of a recipe's ``[space] name = "mobilenet"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, or number of maps, e.g. the number of classes.
        preset: ``"tiny"`` (images up to 16 pixels), ``"small"`` (up to 96), ``"large"``
            (once-for-all's space), ``"mobilenet-v3-large"`` or ``"mobilenet-v3-small"`` (that one
            network), or a published space: ``"ofa-w1.0"``, ``"fbnet"``, ``"proxyless"``; chosen by
            the size of the images if None.
        stages: Stages in place of the preset's; this and all that follow are as in
            `MobileNetConfig`.
        resolution: Options for the longer side of the input, in pixels; its aspect ratio is that of
            the images.
        width: Options for the width multiplier.
        stem_channels: Channels of the first convolution.
        stem_stride: Stride of the first convolution.
        head_channels: Channels of the last convolution.
        feature_channels: Length of the vector before the last linear layer, 0 for none.
        dropout: Dropout probability before the last linear layer.
        activation: Activation after the first and the last convolution.
        feature_bias: Whether the layer of ``feature_channels`` has a bias.
        dense_head: Head for maps.
        operator_weights: Whether the operators of a block share weights.
        maps: Whether the networks have to give maps; ``dense_head`` is then that of `DenseHead` if
            None.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, or the images are too small.
    """
    config = changed(
        preset_for("mobilenet", preset, image_shape, PRESETS)(image_shape),
        in_channels=image_shape[2],
        outputs=outputs,
        stages=stages,
        resolution=resolution,
        width=width,
        stem_channels=stem_channels,
        stem_stride=stem_stride,
        head_channels=head_channels,
        feature_channels=feature_channels,
        dropout=dropout,
        activation=activation,
        feature_bias=feature_bias,
        dense_head=DenseHead() if maps and dense_head is None else dense_head,
        operator_weights=operator_weights,
        aspect=aspect_of(image_shape),
    )
    return MobileNetSpace(config)


PLUGINS = (
    SpacePlugin(
        "space",
        "mobilenet",
        mobilenet,
        "Inverted bottlenecks with elastic depth, kernel and expansion (MobileNetV3)",
        examples={
            "tiny": DIGITS,
            "small": SMALL,
            "large": LARGE,
            "mobilenet-v3-large": LARGE,
            "mobilenet-v3-small": LARGE,
            "ofa-w1.0": LARGE,
            "fbnet": LARGE,
            "proxyless": LARGE,
        },
    ),
)
