"""Several spaces searched as one; their networks share no weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.cost_model.operator_counts import OperatorCountTable
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.building import StageOutline
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.supernet.supernet import Supernet

__all__ = ["FAMILY", "UnionSpace"]

FAMILY = "family"
"""Name of the choice that selects the member space."""


class UnionSpace(SearchSpace):
    """Union of several spaces; the first choice selects the member space.

    Names of a member's choices begin with its label (``"compact.stem.width"``). Networks of
    different members share no weights, so there is no supernet: the space needs an evaluator that
    trains each candidate alone.

    Args:
        members: Spaces by label, the ones of smaller networks first.

    Raises:
        ConfigError: There are none.
    """

    name = "union"
    nests = False

    def __init__(self, members: Mapping[str, SearchSpace]) -> None:
        if not members:
            raise ConfigError("a union of spaces has no members; name at least one")
        self.members = dict(members)
        self.traceable = all(space.traceable for space in self.members.values())

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """Choice of the family, then the choices of each member."""
        found = [Choice(FAMILY, tuple(self.members))]
        for label, space in self.members.items():
            found += [_of_member(label, choice) for choice in space.choices]
        return tuple(found)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Fingerprints of all members."""
        return {label: space.fingerprint for label, space in self.members.items()}

    def member(self, architecture: Architecture) -> tuple[SearchSpace, Architecture]:
        """Return the member space of a network, and the network as one of that space."""
        values = self.check(architecture).as_dict()
        label = str(values.pop(FAMILY))
        space, start = self.members[label], len(label) + 1
        return space, space.architecture({name[start:]: v for name, v in values.items()})

    def of_member(self, label: str, architecture: Architecture) -> Architecture:
        """Return a network of a member as one of the union: the inverse of `member`."""
        own = self.members[label].check(architecture).values
        return self.architecture({FAMILY: label, **{f"{label}.{name}": v for name, v in own}})

    def build(self, architecture: Architecture) -> nn.Module:
        """Build the network as its member space does."""
        space, own = self.member(architecture)
        return space.build(own)

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return the input shape in the member space."""
        space, own = self.member(architecture)
        return space.input_shape(own)

    def outline(self, architecture: Architecture) -> tuple[StageOutline, ...]:
        """Return the outline in the member space."""
        space, own = self.member(architecture)
        return space.outline(own)

    def supernet(self) -> Supernet:
        """Raise: there is no supernet of networks that share no weights.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"networks of {', '.join(self.members)} share no weights")

    def steps(self, codes: npt.NDArray[np.int64]) -> OperatorCountTable | None:
        """Return the operator counts of all networks; None if a member cannot tell them."""
        tables, order = [], []
        for space, rows, own in self._divided(codes):
            table = space.steps(own)
            if table is None:
                return None
            tables.append(table)
            order.append(rows)
        return OperatorCountTable.stacked(tables).rows(np.argsort(np.concatenate(order)))

    def counted(self, codes: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        """Return the costs that every member counts."""
        return self._gathered(codes, lambda space, own: space.counted(own))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Return the depth of each network; None if a member cannot tell it."""

        def named(space: SearchSpace, own: npt.NDArray[np.int64]) -> dict[str, Any]:
            depth = space.depth(own)
            return {} if depth is None else {"depth": depth}

        return self._gathered(codes, named).get("depth")

    def _gathered(
        self,
        codes: npt.NDArray[np.int64],
        of: Callable[[SearchSpace, npt.NDArray[np.int64]], Mapping[str, npt.NDArray[np.int64]]],
    ) -> dict[str, npt.NDArray[np.int64]]:
        """Gather numbers of N networks by name, for the names that all members give."""
        parts = [(rows, of(space, own)) for space, rows, own in self._divided(codes)]
        names = set.intersection(*(set(values) for _, values in parts))
        found = {name: np.zeros(len(codes), dtype=np.int64) for name in sorted(names)}
        for rows, values in parts:
            for name, column in found.items():
                column[rows] = values[name]
        return found

    def _divided(
        self, codes: npt.NDArray[np.int64]
    ) -> Sequence[tuple[SearchSpace, npt.NDArray[np.intp], npt.NDArray[np.int64]]]:
        """Return each member with its rows, perhaps none, and their codes in that member."""
        found, start = [], 1
        for number, space in enumerate(self.members.values()):
            rows = np.flatnonzero(codes[:, 0] == number)
            found.append((space, rows, codes[rows, start : start + len(space.choices)]))
            start += len(space.choices)
        return found


def _of_member(label: str, choice: Choice) -> Choice:
    when = ChoiceCondition(FAMILY, (label,))
    if choice.when is not None:
        when = replace(choice.when, name=f"{label}.{choice.when.name}")
    return replace(choice, name=f"{label}.{choice.name}", when=when)
