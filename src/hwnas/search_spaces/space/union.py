"""Several spaces searched as one; their networks share no weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.cost_model.operator_counts import OperatorCountTable
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.search_space import SearchSpace, StageOutline
from hwnas.search_spaces.supernet.supernet import Supernet

__all__ = ["FAMILY", "PRESETS", "UnionSpace", "union"]

FAMILY = "family"
"""Name of the choice that selects the member space."""

_DENSE_STAGE = {"stride": 2, "depth": (1,), "expand_ratio": (1.0,), "block": "basic"}

PRESETS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    # Inverted bottlenecks for low latencies, dense networks of one block a stage for higher ones:
    # at 32 pixels they have 0.5 to 10 and 3.5 to 29 million multiply-accumulates.
    "cpu": (
        {"name": "resnet", "preset": "inverted"},
        {
            "name": "resnet",
            "preset": "compact",
            "width": (0.5, 1.0, 1.5),
            "stages": [{"channels": channels, **_DENSE_STAGE} for channels in (32, 64, 128)],
        },
    )
}
"""Tables of the member spaces, by name of the preset."""


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


def union(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str | None = None,
    members: Sequence[Mapping[str, Any]] | None = None,
    resolution: Sequence[int] | None = None,
    folder: Path = Path(),
) -> UnionSpace:
    """Return the space of a recipe's ``[space] name = "union"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        preset: ``"cpu"``: residual networks that CPUs run fast on small images: inverted
            bottlenecks for low latencies, dense networks for higher ones.
        members: One table a member, like ``[space]`` itself, in place of the preset's. The names of
            its choices begin with its ``label``, or else its preset, or else its name.
        resolution: Options for the input's height and width, for members that have none of their
            own; None stands for the longer side of the images if a preset is given.
        folder: Folder that relative paths start from.

    Raises:
        ConfigError: A preset, a name or an option is unknown, or two members have the same label.
    """
    from hwnas.search_spaces.catalogue import named_space

    if members is None:
        known = f"expected one of {', '.join(PRESETS)}, or tables [[space.members]]"
        if preset is None or preset not in PRESETS:
            raise ConfigError(f"space.preset is {preset!r}; {known}")
        resolution = resolution or (max(image_shape[:2]),)
        members = PRESETS[preset]
    made: dict[str, SearchSpace] = {}
    for table in members:
        options = dict(table) if resolution is None else {"resolution": tuple(resolution), **table}
        name = str(options.pop("name", ""))
        label = str(options.pop("label", options.get("preset", name)))
        if label in made:
            raise ConfigError(f"space.members has two called {label!r}; give one another label")
        made[label] = named_space(name, image_shape, outputs, options, folder, "space.members")
    return UnionSpace(made)


def _of_member(label: str, choice: Choice) -> Choice:
    when = ChoiceCondition(FAMILY, (label,))
    if choice.when is not None:
        when = replace(choice.when, name=f"{label}.{choice.when.name}")
    return replace(choice, name=f"{label}.{choice.name}", when=when)
