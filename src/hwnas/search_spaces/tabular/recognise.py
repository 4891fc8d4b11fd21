"""Recognition of the space that a table's networks belong to."""

from __future__ import annotations

import contextlib

from hwnas.errors import ConfigError, DataError
from hwnas.plugin import closest
from hwnas.search_spaces.tabular.categorical import CategoricalSpace
from hwnas.search_spaces.tabular.fbnet import FBNetSpace
from hwnas.search_spaces.tabular.hwgpt import HwGptSpace
from hwnas.search_spaces.tabular.nasbench201 import NasBench201Space
from hwnas.search_spaces.tabular.ofa_mobilenet import OFAMobileNetSpace
from hwnas.search_spaces.tabular.table import Arrays, TabularSpace

__all__ = ["TABULAR_SPACES", "tabular_space"]

TABULAR_SPACES: dict[str, TabularSpace] = {
    "nasbench201": NasBench201Space(),
    "fbnet": FBNetSpace(),
    "ofa-mobilenet": OFAMobileNetSpace(),
    "hwgpt-s": HwGptSpace("hwgpt-s", (192, 384, 768), (10, 11, 12), (4, 8, 12)),
    "hwgpt-m": HwGptSpace("hwgpt-m", (256, 512, 1024), (22, 23, 24), (8, 12, 16)),
    "hwgpt-l": HwGptSpace("hwgpt-l", (320, 640, 1280), (34, 35, 36), (8, 16, 20)),
}


def tabular_space(arrays: Arrays, name: str | None = None) -> TabularSpace:
    """Return the space whose encoding a table has.

    Args:
        arrays: Arrays of the table, by name.
        name: A key of `TABULAR_SPACES` or ``"categorical"``; recognised from the arrays if None.

    Raises:
        ConfigError: The name is unknown.
        DataError: The table has no encoding of networks, or not that of the named space.
    """
    if name == "categorical":
        return CategoricalSpace.of(arrays)
    if name is not None:
        if name not in TABULAR_SPACES:
            known = (*TABULAR_SPACES, "categorical")
            raise ConfigError(f"unknown tabular space {name!r}; {closest(name, known)}")
        TABULAR_SPACES[name].encode(arrays)
        return TABULAR_SPACES[name]
    for space in TABULAR_SPACES.values():
        with contextlib.suppress(DataError):
            space.encode(arrays)
            return space
    return CategoricalSpace.of(arrays)
