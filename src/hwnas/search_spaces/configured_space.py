"""Spaces that a typed configuration describes."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.block_space import BlockSpace
from hwnas.search_spaces.choices import Choice, Option
from hwnas.search_spaces.steps import PartTable

__all__ = ["Configuration", "ConfiguredSpace", "Indices"]

Indices = Mapping[str, npt.NDArray[np.int64]]
"""For every choice, with one option or several, the index of N networks' options, (N,)."""


class Configuration(Protocol):
    """A frozen dataclass that says what is elastic and what is fixed."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def resolution(self) -> tuple[int, ...]:
        """Options for height and width of the input, in pixels."""

    @property
    def in_channels(self) -> int:
        """Channels of the images."""


C = TypeVar("C", bound=Configuration)


class ConfiguredSpace(BlockSpace, Generic[C]):
    """A family of networks; choices with a single option are fixed and do not appear in `choices`.

    A family gives what its networks are made of (`decisions`, `places`, `frame`) and what those
    ask of hardware (`part_table`, `chosen_parts`); all else follows.

    Args:
        config: What is elastic and what is fixed.
    """

    def __init__(self, config: C) -> None:
        self.config: C = config

    @abstractmethod
    def decisions(self) -> Iterator[Choice]:
        """All choices, those with a single option too, each after the one it depends on."""

    @abstractmethod
    def part_table(self) -> PartTable:
        """What may stand at each place of `chosen_parts`, in terms of hardware."""

    @abstractmethod
    def chosen_parts(self, indices: Indices) -> npt.NDArray[np.int64]:
        """Which part of the `part_table` stands at each of its places, (N, places)."""

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The elastic decisions."""
        return tuple(choice for choice in self._decisions if len(choice.options) > 1)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The whole configuration."""
        return dataclasses.asdict(self.config)

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Channels, height and width of one input image."""
        side = int(self.values(architecture)["resolution"])
        return self.config.in_channels, side, side

    def values(self, architecture: Architecture) -> dict[str, Any]:
        """For every choice, with one option or several, the option; None where it has no effect."""
        return {**self._fixed, **dict(architecture.values)}

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]]:
        """See `SearchSpace.parts`."""
        return self._part_table, self.chosen_parts(self.indices(codes))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many blocks there are in rows whose depth can be chosen, (N,)."""
        indices, depths = self.indices(codes), {each.depth for each in self.places} - {""}
        total = np.zeros(len(codes), dtype=np.int64)
        for choice in self._decisions:
            if choice.name in depths:
                total += np.array(choice.options, dtype=np.int64)[indices[choice.name]]
        return total

    def indices(self, codes: npt.NDArray[np.int64]) -> Indices:
        """Codes of shape (N, len(choices)) by choice, with 0 for choices of a single option."""
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
