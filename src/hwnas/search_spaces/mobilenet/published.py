"""Published tables of networks in a MobileNet space, and conversion to and from their rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache

import numpy as np
import numpy.typing as npt

from hwnas.errors import ConfigError
from hwnas.search_spaces.mobilenet.config import MobileNetConfig
from hwnas.search_spaces.mobilenet.presets import PRESETS
from hwnas.search_spaces.tabular import FBNetSpace, OFAMobileNetSpace

__all__ = ["indices_of", "rows_of", "table_of"]

Codes = npt.NDArray[np.int64]

_FBNET_SHAPE = (32, 32, 3)
_OFA_SHAPE = (224, 224, 3)
_OFA_RESOLUTIONS = range(96, 257, 4)
_FREE = ("resolution", "in_channels", "outputs", "dropout")
# FBNet's tables number the candidates by kernel size, with the skip last.
_FBNET_NUMBERS = (
    "k3_e1", "k3_e1_g2", "k3_e3", "k3_e6", "k5_e1", "k5_e1_g2", "k5_e3", "k5_e6", "skip",
)  # fmt: skip


@cache
def table_of(config: MobileNetConfig) -> FBNetSpace | OFAMobileNetSpace | None:
    """Return the table's space with these networks, up to their last layer; None without one."""
    if _alike(config, PRESETS["fbnet"](_FBNET_SHAPE)):
        return FBNetSpace() if config.resolution == (_FBNET_SHAPE[0],) else None
    if _alike(config, PRESETS["ofa-w1.0"](_OFA_SHAPE)):
        listed = all(side in _OFA_RESOLUTIONS for side in config.resolution)
        return OFAMobileNetSpace() if listed else None
    return None


def rows_of(config: MobileNetConfig, indices: Mapping[str, Codes]) -> Codes:
    """Return networks as rows of the table of `table_of`, (N, positions).

    Args:
        config: Configuration of a space that has a table.
        indices: Indices of N networks' options for every choice, with one option or several.
    """
    if isinstance(table_of(config), FBNetSpace):
        return np.column_stack([_numbers(config, s)[indices[name]] for s, name in _layers(config)])
    columns = []
    for s, stage in list(enumerate(config.stages))[1:]:
        depth = np.array(stage.depth)[indices[f"stage{s}.depth"]]
        for b in range(max(stage.depth)):
            kernel = indices[f"stage{s}.block{b}.kernel_size"]
            ratio = indices[f"stage{s}.block{b}.expand_ratio"]
            columns.append(np.where(b < depth, 1 + len(stage.expand_ratio) * kernel + ratio, 0))
    listed = [_OFA_RESOLUTIONS.index(int(side)) for side in config.resolution]
    return np.column_stack([*columns, np.array(listed)[indices["resolution"]]])


def indices_of(config: MobileNetConfig, row: npt.NDArray[np.integer]) -> dict[str, int]:
    """Return the indices of a row's options, for choices with an effect; the inverse of `rows_of`.

    Raises:
        ConfigError: The space has no table, or the table has no such network.
    """
    table = table_of(config)
    if table is None:
        raise ConfigError(
            "no published table has the networks of this space mobilenet; use preset 'ofa-w1.0', "
            "or 'fbnet' for images of 32 pixels"
        )
    options = np.array(table.options)
    if row.shape != options.shape or not ((row >= 0) & (row < options)).all():
        raise ConfigError(
            f"got {row.tolist()}; expected {len(options)} numbers of table {table.name}, each "
            "from 0 to one less than its options"
        )
    codes = [int(code) for code in row]
    return _fbnet_indices(config, codes) if isinstance(table, FBNetSpace) else _ofa(config, codes)


def _fbnet_indices(config: MobileNetConfig, codes: list[int]) -> dict[str, int]:
    return {
        name: config.stages[s].operators.index(_FBNET_NUMBERS[code])
        for (s, name), code in zip(_layers(config), codes, strict=True)
    }


def _ofa(config: MobileNetConfig, codes: list[int]) -> dict[str, int]:
    side = _OFA_RESOLUTIONS[codes[-1]]
    if side not in config.resolution:
        raise ConfigError(
            f"the network is for images of {side} pixels; space.resolution has "
            f"{list(config.resolution)}"
        )
    found = {"resolution": config.resolution.index(side)}
    start = 0
    for s, stage in list(enumerate(config.stages))[1:]:
        blocks = codes[start : start + max(stage.depth)]
        start += max(stage.depth)
        present = [code for code in blocks if code]
        if blocks[: len(present)] != present or len(present) not in stage.depth:
            raise ConfigError(
                f"blocks {blocks} of a stage are not in space mobilenet; expected {stage.depth[0]} "
                f"to {stage.depth[-1]} of them, then zeros"
            )
        found[f"stage{s}.depth"] = stage.depth.index(len(present))
        for b, code in enumerate(present):
            kernel, ratio = divmod(code - 1, len(stage.expand_ratio))
            found[f"stage{s}.block{b}.kernel_size"] = kernel
            found[f"stage{s}.block{b}.expand_ratio"] = ratio
    return found


def _alike(config: MobileNetConfig, published: MobileNetConfig) -> bool:
    """Return whether two configurations differ in nothing but images, outputs and training."""
    fields = (field.name for field in dataclasses.fields(config) if field.name not in _FREE)
    return all(getattr(config, name) == getattr(published, name) for name in fields)


def _layers(config: MobileNetConfig) -> list[tuple[int, str]]:
    """Return stage and choice of each of FBNet's layers."""
    return [
        (s, f"stage{s}.block{b}.operator")
        for s, stage in enumerate(config.stages)
        for b in range(max(stage.depth))
    ]


def _numbers(config: MobileNetConfig, s: int) -> Codes:
    """Return the table's numbers of a stage's options."""
    return np.array([_FBNET_NUMBERS.index(name) for name in config.stages[s].operators])
