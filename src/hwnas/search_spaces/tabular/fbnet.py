"""Space of FBNet's tables (Wu et al., CVPR 2019): 22 layers of nine candidate blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from hwnas.errors import DataError
from hwnas.search_spaces.cost_model.operator_counter import OperatorCounter
from hwnas.search_spaces.cost_model.operator_counts import (
    Assembly,
    OperatorCountTable,
    OperatorSignature,
)
from hwnas.search_spaces.tabular.table import Arrays, Codes, checked_codes, integer_matrix

__all__ = ["FBNetSpace"]

# Kernel size, expansion and groups of the pointwise convolutions; the ninth option is to skip.
_BLOCKS = ((3, 1, 1), (3, 1, 2), (3, 3, 1), (3, 6, 1), (5, 1, 1), (5, 1, 2), (5, 3, 1), (5, 6, 1))
# Layers, channels and the stride of the first layer. With these strides the multiply-accumulates
# equal those of HELP's table (32x32 images) exactly.
_STAGES = ((1, 16, 1), (4, 24, 1), (4, 32, 2), (4, 64, 2), (4, 112, 1), (4, 184, 2), (1, 352, 1))
_LAYERS = sum(layers for layers, _, _ in _STAGES)
_SIDE, _STEM, _HEAD, _CLASSES = 32, 16, 1504, 100


@dataclass(frozen=True)
class FBNetSpace:
    """FBNet's layer-wise space at 32x32 pixels and 100 classes, as HELP measured it."""

    name: str = "fbnet"
    options: tuple[int, ...] = (len(_BLOCKS) + 1,) * _LAYERS
    groups: tuple[int, ...] = tuple(
        stage for stage, (layers, _, _) in enumerate(_STAGES) for _ in range(layers)
    )

    def encode(self, arrays: Arrays) -> Codes:
        """Read ``archs``, ``choice`` or ``ops``, of shape (N, 22): indices of blocks, 8 to skip."""
        codes = integer_matrix(arrays)
        if codes is None:
            raise DataError(f"the table has no integer array of 22 layers; it has {list(arrays)}")
        return checked_codes(codes, self.name, self.options)

    def connected(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Return True for all networks."""
        return np.ones(len(codes), dtype=bool)

    def canonical(self, codes: Codes) -> Codes:
        """Return the codes unchanged."""
        return codes

    def depth(self, codes: Codes) -> npt.NDArray[np.int64]:
        """Return the number of blocks of each network, (N,), without skipped ones."""
        layers: npt.NDArray[np.int64] = (codes != len(_BLOCKS)).sum(1)
        return layers

    def parts(self, codes: Codes) -> Assembly:
        """Return the layers in their order, then stem and head as one part."""
        skeleton = np.zeros((len(codes), 1), dtype=np.int64)
        return Assembly(_parts(), np.hstack([codes, skeleton]))

    def steps(self, codes: Codes) -> OperatorCountTable:
        """Return the operator counts of whole networks."""
        return OperatorCountTable.of_parts(self.parts(codes))


@cache
def _parts() -> tuple[tuple[Counter[OperatorSignature], ...], ...]:
    layers: list[tuple[Counter[OperatorSignature], ...]] = []
    inputs, side = _STEM, _SIDE
    for count, channels, first_stride in _STAGES:
        for stride in (first_stride, *[1] * (count - 1)):
            place = inputs, side, channels, stride
            layers.append((*(_block(*place, *b) for b in _BLOCKS), _skip(*place)))
            inputs, side = channels, -(-side // stride)
    stem = OperatorCounter(3, _SIDE).conv(_STEM, 3)
    head = OperatorCounter(inputs, side, steps=stem.steps).conv(_HEAD).pool().linear(_CLASSES)
    return *layers, (head.steps,)


def _block(
    inputs: int,
    side: int,
    channels: int,
    stride: int,
    kernel_size: int,
    expansion: int,
    groups: int,
) -> Counter[OperatorSignature]:
    hidden = inputs * expansion
    block = OperatorCounter(inputs, side).conv(hidden, groups=groups)
    block.conv(hidden, kernel_size, stride, groups=hidden)
    block.conv(channels, groups=groups, activation=False)
    if inputs == channels and stride == 1:
        block.simple("elementwise", inputs=2)
    return block.steps


def _skip(inputs: int, side: int, channels: int, stride: int) -> Counter[OperatorSignature]:
    """Return the counts of a skip: none, or a pointwise convolution where the shape changes."""
    if inputs == channels and stride == 1:
        return Counter()
    return OperatorCounter(inputs, side).conv(channels, 1, stride).steps
