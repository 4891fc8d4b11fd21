"""Space of once-for-all's MobileNetV3 (Cai et al., ICLR 2020): elastic depth, kernel, expansion."""

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
from hwnas.search_spaces.tabular.table import Arrays, Codes, checked_codes, joined_matrix

__all__ = ["OFAMobileNetSpace"]

_KERNELS, _EXPANSIONS, _DEPTHS = (3, 5, 7), (3, 4, 6), (2, 3, 4)
_RESOLUTIONS = tuple(range(96, 257, 4))
# Channels, stride of the first block, and whether blocks squeeze and excite; width factor 1.0.
_STAGES = ((24, 2, False), (40, 2, True), (80, 2, False), (112, 1, True), (160, 2, True))
_MOST = max(_DEPTHS)
_PLACES = _MOST * len(_STAGES)
_STEM, _EXPAND, _FEATURES, _CLASSES = 16, 960, 1280, 1000
_ABSENT, _PER_PLACE = 0, 1 + len(_KERNELS) * len(_EXPANSIONS)
_DEFAULT_RESOLUTION = 224


@dataclass(frozen=True)
class OFAMobileNetSpace:
    """Space of five stages of two to four blocks, at a choice of resolutions.

    The first 20 positions are blocks: 0 for no block, else 1 + 3 x the index of the kernel size +
    the index of the expansion ratio. The last position is the index of the resolution, 96 to 256
    pixels in steps of 4.
    """

    name: str = "ofa-mobilenet"
    options: tuple[int, ...] = (*(_PER_PLACE,) * _PLACES, len(_RESOLUTIONS))
    groups: tuple[int, ...] = (*(i // _MOST for i in range(_PLACES)), len(_STAGES))

    def encode(self, arrays: Arrays) -> Codes:
        """Read ``ks`` and ``e`` (N, 20), ``d`` (N, 5) and, if it exists, ``r`` (N,)."""
        joined = joined_matrix(arrays)
        if joined is None:
            raise DataError(f"the table has no arrays ks, e and d; it has {list(arrays)}")
        columns = 2 * _PLACES + len(_STAGES)
        if joined.shape[1] not in (columns, columns + 1):
            raise DataError(
                f"ks, e, d and r have {joined.shape[1]} columns together; {self.name} has 20, 20, "
                "5 and 1"
            )
        kernels, expansions, depths, resolutions = np.split(
            joined, [_PLACES, 2 * _PLACES, columns], axis=1
        )
        if not resolutions.size:
            resolutions = np.full((len(joined), 1), _DEFAULT_RESOLUTION)
        block = np.arange(_PLACES)
        present = block % _MOST < depths[:, block // _MOST]
        _index("d", depths, _DEPTHS)
        kernel = _index("ks", np.where(present, kernels, _KERNELS[0]), _KERNELS)
        expansion = _index("e", np.where(present, expansions, _EXPANSIONS[0]), _EXPANSIONS)
        blocks = np.where(present, 1 + len(_EXPANSIONS) * kernel + expansion, _ABSENT)
        codes = np.hstack([blocks, _index("r", resolutions, _RESOLUTIONS)])
        return checked_codes(codes, self.name, self.options)

    def connected(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Return True for all networks."""
        return np.ones(len(codes), dtype=bool)

    def canonical(self, codes: Codes) -> Codes:
        """Return the codes unchanged."""
        return codes

    def depth(self, codes: Codes) -> npt.NDArray[np.int64]:
        """Return the number of blocks of each network, (N,)."""
        layers: npt.NDArray[np.int64] = (codes[:, :-1] != _ABSENT).sum(1)
        return layers

    def parts(self, codes: Codes) -> Assembly:
        """Return the blocks in their order, then stem and head as one part."""
        present, which = np.unique(codes[:, -1], return_inverse=True)
        by_resolution = [_parts(_RESOLUTIONS[index]) for index in present]
        together = [sum(place, ()) for place in zip(*by_resolution, strict=True)]
        blocks = codes[:, :-1] + _PER_PLACE * which[:, None]
        return Assembly(together, np.hstack([blocks, which[:, None]]))

    def steps(self, codes: Codes) -> OperatorCountTable:
        """Return the operator counts of whole networks."""
        return OperatorCountTable.of_parts(self.parts(codes))


def _index(name: str, values: Codes, options: tuple[int, ...]) -> Codes:
    index = np.searchsorted(options, values)
    wrong = np.argwhere(np.take(options, index, mode="clip") != values)
    if len(wrong):
        row, column = wrong[0]
        raise DataError(f"{name} is {values[row, column]} in row {row}; expected one of {options}")
    return index


@cache
def _parts(resolution: int) -> tuple[tuple[Counter[OperatorSignature], ...], ...]:
    """Return the operator counts of each possible block at each place, then of stem and head."""
    stem = OperatorCounter(3, resolution).conv(_STEM, 3, stride=2)
    stem.conv(_STEM, 3, groups=_STEM).conv(_STEM, activation=False).simple("elementwise", inputs=2)
    places = []
    inputs, side = stem.channels, stem.side
    for channels, first_stride, gated in _STAGES:
        for stride in (first_stride, *[1] * (_MOST - 1)):
            blocks = [
                _block(inputs, side, channels, stride, kernel_size, expansion, gated)
                for kernel_size in _KERNELS
                for expansion in _EXPANSIONS
            ]
            places.append((Counter[OperatorSignature](), *blocks))
            inputs, side = channels, -(-side // stride)
    head = OperatorCounter(inputs, side, steps=stem.steps).conv(_EXPAND).pool()
    head.conv(_FEATURES).linear(_CLASSES)
    return *places, (head.steps,)


def _block(
    inputs: int,
    side: int,
    channels: int,
    stride: int,
    kernel_size: int,
    expansion: int,
    gated: bool,
) -> Counter[OperatorSignature]:
    hidden = inputs * expansion
    block = (
        OperatorCounter(inputs, side).conv(hidden).conv(hidden, kernel_size, stride, groups=hidden)
    )
    if gated:
        block.gate(_multiple_of_8(hidden / 4))
    block.conv(channels, activation=False)
    if inputs == channels and stride == 1:
        block.simple("elementwise", inputs=2)
    return block.steps


def _multiple_of_8(width: float) -> int:
    """Return the nearest multiple of 8, never more than 10% below, as in MobileNet's code."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded
