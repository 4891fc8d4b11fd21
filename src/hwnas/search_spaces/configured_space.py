"""Search spaces that a typed configuration describes."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.cost_model.operator_counts import PartTable
from hwnas.search_spaces.map_sizes import SQUARE, Size, input_size
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.choices import Choice, Option
from hwnas.search_spaces.supernet.block_space import BlockSpace

__all__ = ["Configuration", "ConfiguredSpace", "Indices"]

Indices = Mapping[str, npt.NDArray[np.int64]]
"""Indices of N networks' options, of shape (N,), for every choice, with one option or several."""


class Configuration(Protocol):
    """Frozen dataclass that defines which properties of a space are elastic and which are fixed."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def resolution(self) -> tuple[int, ...]:
        """Options for the longer side of the input, in pixels."""

    @property
    def in_channels(self) -> int:
        """Channels of the images."""


C = TypeVar("C", bound=Configuration)


class ConfiguredSpace(BlockSpace, Generic[C]):
    """Family of networks that a configuration describes.

    Choices with a single option are fixed and do not appear in `choices`. A subclass defines the
    structure of its networks (`decisions`, `block_specs`, `frame`) and their operator counts
    (`part_table`, `chosen_parts`); all else follows.

    Args:
        config: Elastic and fixed properties of the space.
    """

    added_later: ClassVar[tuple[str, ...]] = ()
    """Fields of the configuration that spaces of earlier versions did not have."""

    def __init__(self, config: C) -> None:
        self.config: C = config

    @abstractmethod
    def decisions(self) -> Iterator[Choice]:
        """Yield all choices, each after the choice that it depends on.

        Choices with a single option are included.
        """

    @abstractmethod
    def part_table(self) -> PartTable:
        """Return the operator counts of every part that may stand at each place of a network."""

    @abstractmethod
    def chosen_parts(self, indices: Indices) -> npt.NDArray[np.int64]:
        """Return the index of the part at each place of the `part_table`, of shape (N, places)."""

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """Elastic choices: those with more than one option."""
        return tuple(choice for choice in self._decisions if len(choice.options) > 1)

    @property
    def identity(self) -> dict[str, Any]:
        """Whole configuration; fields that were added later only where they are not the default."""
        found = dataclasses.asdict(self.config)
        for name in self.added_later:
            if found[name] == getattr(type(self.config), name):
                del found[name]
        return found

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return channels, height and width of one input image."""
        resolution = int(self.values(architecture)["resolution"])
        height, width = input_size(resolution, self.aspect)
        return self.config.in_channels, height, width

    @property
    def aspect(self) -> Size:
        """Height and width of the inputs, as a ratio; square unless a subclass differs."""
        return SQUARE

    def values(self, architecture: Architecture) -> dict[str, Any]:
        """Return the option of every choice, including choices of a single option.

        The value of an elastic choice that has no effect is None.
        """
        return {**self._fixed, **dict(architecture.values)}

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]]:
        """See `SearchSpace.parts`."""
        return self._part_table, self.chosen_parts(self.indices(codes))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the total number of blocks in rows that have a depth choice, of shape (N,)."""
        indices, depths = self.indices(codes), {each.depth for each in self.block_specs} - {""}
        total = np.zeros(len(codes), dtype=np.int64)
        for choice in self._decisions:
            if choice.name in depths:
                total += np.array(choice.options, dtype=np.int64)[indices[choice.name]]
        return total

    def indices(self, codes: npt.NDArray[np.int64]) -> Indices:
        """Return the columns of codes of shape (N, len(choices)), by choice name.

        Choices of a single option have index 0.
        """
        only = np.zeros(len(codes), dtype=np.int64)
        elastic = {choice.name: codes[:, i] for i, choice in enumerate(self.choices)}
        return {choice.name: elastic.get(choice.name, only) for choice in self._decisions}

    @cached_property
    def _decisions(self) -> tuple[Choice, ...]:
        return tuple(self.decisions())

    @cached_property
    def _fixed(self) -> dict[str, Option | None]:
        return {c.name: c.options[0] if len(c.options) == 1 else None for c in self._decisions}

    @cached_property
    def _part_table(self) -> PartTable:
        return self.part_table()
