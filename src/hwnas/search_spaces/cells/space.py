"""Space of NAS-Bench-201's networks (Dong and Yang, ICLR 2020): one cell of six edges, stacked.

The same networks are rows of published tables (`hwnas.search_spaces.tabular.NasBench201Space`).
With this space they can be built, trained with shared weights, exported and measured.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.cells.network import Cell, Halving, head, operation, stem
from hwnas.search_spaces.cells.part_counts import Skeleton, chosen_parts, part_table
from hwnas.search_spaces.checks import OperatorWeights, checked_weights
from hwnas.search_spaces.cost_model.operator_counter import OperatorCounter
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature, PartTable
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.choices import Choice
from hwnas.search_spaces.space.space_plugin import SMALL, SpacePlugin
from hwnas.search_spaces.supernet.block_space import BlockSpace, row
from hwnas.search_spaces.supernet.block_specs import BlockSpec
from hwnas.search_spaces.tabular import NasBench201Space
from hwnas.search_spaces.tabular.nasbench201 import EDGES, OPERATIONS

__all__ = ["PLUGINS", "CellSpace", "nasbench201"]

# Ordered from small to large; published tables use the order of `OPERATIONS`.
_OPTIONS = ("none", "skip_connect", "avg_pool_3x3", "nor_conv_1x1", "nor_conv_3x3")
_NUMBERS = np.array([OPERATIONS.index(option) for option in _OPTIONS])
_WIDTHS = (1, 2, 4)  # channels of the three stages, as multiples of the first stage's


class CellSpace(BlockSpace):
    """Space of all 15,625 cells: a stem, then stages of equal cells, each of half the resolution.

    Cells that are isomorphic, or that differ only in edges on no path from input to output, are
    different architectures, as in the published tables. The space also contains networks without
    any path from input to output; their outputs are constant.

    Args:
        image_shape: Height, width and channels of the images; height and width at least 4 pixels.
        outputs: Length of the output vector.
        channels: Channels of the first stage; each later stage has twice those of the one before.
        cells: Number of cells in each of the three stages.
        operator_weights: ``"own"`` if each operation of an edge has weights of its own in a
            supernet, ``"shared"`` if the pointwise convolution is the centre of the larger one.

    Raises:
        ConfigError: A number is out of range, or there are no such weights.
    """

    name = "nasbench201"
    choices = tuple(Choice(f"edge{start}{end}", _OPTIONS) for start, end in EDGES)

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (32, 32, 3),
        outputs: int = 10,
        channels: int = 16,
        cells: int = 5,
        operator_weights: OperatorWeights = "shared",
    ) -> None:
        for name, value in {"channels": channels, "cells": cells, "outputs": outputs}.items():
            if value < 1:
                raise ConfigError(f"{name} is {value}; space nasbench201 needs at least 1")
        if min(image_shape[:2]) < _WIDTHS[-1]:
            raise ConfigError(
                f"images of {image_shape[0]}x{image_shape[1]} pixels are too small for space "
                f"nasbench201, which halves them twice; expected at least 4x4"
            )
        self.image_shape, self.outputs = image_shape, outputs
        self.channels, self.cells = channels, cells
        self.operator_weights = checked_weights(operator_weights)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Sizes of the images and of the stacked network, and who owns weights if not shared."""
        found = {
            "image_shape": list(self.image_shape),
            "outputs": self.outputs,
            "channels": self.channels,
            "cells": self.cells,
        }
        if self.operator_weights == "own":
            found["operator_weights"] = "own"
        return found

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return channels, height and width of one input image."""
        height, width, channels = self.image_shape
        return channels, height, width

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Stem, edges of each cell, blocks that halve the resolution, and head."""
        found = [BlockSpec("stem", partial(stem, self.image_shape[2], self.channels))]
        own: dict[str, Any] = {}
        if self.operator_weights == "own":
            own = {"operator": "name", "operators": _OPTIONS, "partial_channels": True}
        for stage, factor in enumerate(_WIDTHS):
            channels = self.channels * factor
            if stage:
                found.append(
                    BlockSpec(f"halving{stage}", partial(Halving, channels // 2, channels))
                )
            found += [
                BlockSpec(
                    f"stage{stage}.{cell}.edges.{edge}",
                    partial(operation, channels),
                    {"name": choice.name},
                    **own,
                )
                for cell in range(self.cells)
                for edge, choice in enumerate(self.choices)
            ]
        return *found, BlockSpec("head", partial(head, channels, self.outputs))

    @property
    def summed(self) -> tuple[tuple[str, ...], ...]:
        """Edges that end at the same node, for each node after the first."""
        nodes = sorted({end for _, end in EDGES})
        return tuple(
            tuple(f"edge{start}{end}" for start, end in EDGES if end == node) for node in nodes
        )

    def frame(self, blocks: Mapping[str, nn.Module]) -> nn.Sequential:
        """See `BlockSpace.frame`."""
        parts = OrderedDict(stem=blocks["stem"])
        for stage in range(len(_WIDTHS)):
            if stage:
                parts[f"halving{stage}"] = blocks[f"halving{stage}"]
            cells = (row(blocks, f"stage{stage}.{cell}.edges") for cell in range(self.cells))
            parts[f"stage{stage}"] = nn.Sequential(*(Cell(edges) for edges in cells))
        parts["head"] = blocks["head"]
        return nn.Sequential(parts)

    def architecture_of(self, row: npt.ArrayLike) -> Architecture:
        """Return the architecture of a row of a published table.

        Args:
            row: Index into `OPERATIONS` for each edge, shape (6,).

        Raises:
            ConfigError: There are not six numbers, or one is out of range.
        """
        codes = np.asarray(row)
        if codes.shape != (len(EDGES),) or not np.isin(codes, range(len(OPERATIONS))).all():
            raise ConfigError(
                f"got {codes.tolist()}; expected a number from 0 to {len(OPERATIONS) - 1} for each "
                f"of the {len(EDGES)} edges"
            )
        names = (OPERATIONS[int(code)] for code in codes)
        return self.architecture(dict(zip((c.name for c in self.choices), names, strict=True)))

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]]:
        """Return edges, nodes, and the rest as one part; see `SearchSpace.parts`."""
        nothing, skip = _OPTIONS.index("none"), _OPTIONS.index("skip_connect")
        return self._part_table, chosen_parts(codes, nothing, skip, len(_OPTIONS))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of convolutions on the longest path of each cell, (N,)."""
        table, published = self.published(codes)
        return table.depth(published)

    def published(
        self, codes: npt.NDArray[np.int64]
    ) -> tuple[NasBench201Space, npt.NDArray[np.int64]]:
        """Return the table's space, and the same cells as rows of the table."""
        return NasBench201Space(), _NUMBERS[codes]

    @cached_property
    def _part_table(self) -> PartTable:
        height, width, _ = self.image_shape
        stages: list[tuple[int, int, int]] = []
        for factor in _WIDTHS:
            stages.append((self.channels * factor, height, width))
            height, width = -(-height // 2), -(-width // 2)
        return part_table(tuple(stages), self.cells, _OPTIONS, self._rest(tuple(stages)))

    def _rest(self, stages: Skeleton) -> Counter[OperatorSignature]:
        """Return the operator counts of stem, blocks that halve the resolution, and head."""
        (channels, height, width), *others = stages
        body = OperatorCounter(self.image_shape[2], height, width=width).conv(
            channels, 3, activation=False
        )
        for channels, *_ in others:
            shortcut = OperatorCounter(body.channels, body.side, steps=body.steps, width=body.width)
            shortcut.simple("pool", stride=2).conv(channels, activation=False, norm=False)
            body.simple("activation").conv(channels, 3, stride=2, activation=False)
            body.simple("activation").conv(channels, 3, activation=False).simple("elementwise", 2)
        body.norm().simple("activation").pool().view().linear(self.outputs)
        return body.steps


def nasbench201(
    image_shape: tuple[int, int, int],
    outputs: int,
    channels: int = 16,
    cells: int = 5,
    operator_weights: OperatorWeights = "shared",
) -> CellSpace:
    """Return the space of a recipe's ``[space] name = "nasbench201"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector.
        channels: Channels of the first stage; each later stage has twice those of the one before.
        cells: Number of cells in each of the three stages.
        operator_weights: ``"own"`` if each operation of an edge has weights of its own in a
            supernet, ``"shared"`` if the pointwise convolution is the centre of the larger one.
    """
    return CellSpace(image_shape, outputs, channels, cells, operator_weights)


PLUGINS = (
    SpacePlugin(
        "space", "nasbench201", nasbench201, "Cells of NAS-Bench-201", examples={"": SMALL}
    ),
)
