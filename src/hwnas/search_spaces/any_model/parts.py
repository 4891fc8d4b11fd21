"""Operator counts of the networks within a model, from the traces of a few of them.

The multiply-accumulates and bytes of an operator are polynomials of the widths that it depends on,
of degree two at most: a convolution computes a product of its input and output channels. Some
traces determine the polynomials of all operators; further traces have to agree to the last byte.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hwnas.errors import ConfigError
from hwnas.search_spaces.any_model.blocks import ResidualRun
from hwnas.search_spaces.cost_model.operator_counts import (
    OperatorCountTable,
    OperatorSignature,
    PartTable,
    counted,
)
from hwnas.search_spaces.cost_model.workload import trace
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.supernet.blueprint import blueprint

__all__ = ["KnownParts", "known_parts"]

Codes = npt.NDArray[np.int64]

_MARKER = "erfinv"  # operator that marks blocks; no network has it
_FIELDS = ("macs", "read_bytes", "written_bytes", "weight_bytes")
_RANDOM, _ROUNDS, _CHECKED = 12, 4, 6  # random traces a round, rounds, traces to check
_MOST = 400  # largest number of sizes of one operator


@dataclass(frozen=True)
class _Place:
    """Operators that depend on the same choices.

    Attributes:
        columns: Columns of the choices in a code.
        options: Number of options of each choice.
        block: Column of the depth, and for each of its options whether the operators are present;
            None if they are always present.
    """

    columns: tuple[int, ...]
    options: tuple[int, ...]
    block: tuple[int, tuple[bool, ...]] | None

    def chosen(self, codes: Codes) -> Codes:
        """Return the index of the part at this place in N networks, of shape (N,)."""
        index = np.zeros(len(codes), dtype=np.int64)
        for column, options in zip(self.columns, self.options, strict=True):
            index = index * options + codes[:, column]
        if self.block is None:
            return index
        column, there = self.block
        return np.where(np.array(there)[codes[:, column]], 1 + index, 0)


@dataclass(frozen=True)
class KnownParts:
    """Parts that networks consist of, and the places of the parts.

    Attributes:
        table: Table of all parts.
        places: Places in the order of the table.
    """

    table: PartTable
    places: tuple[_Place, ...]

    def of(self, codes: Codes) -> tuple[PartTable, Codes]:
        """See `SearchSpace.parts`."""
        return self.table, np.column_stack([place.chosen(codes) for place in self.places])


def known_parts(
    space: SearchSpace, widths: Mapping[str, Sequence[int]], runs: Mapping[str, ResidualRun]
) -> KnownParts | None:
    """Learn the parts of a space whose networks are narrower and shallower than the largest.

    Args:
        space: Search space; choices other than those of widths and runs must not change any
            operator.
        widths: Numbers of channels in the order of a choice's options, by the name of the choice.
        runs: Blocks that may be skipped, by the name of the choice of how many remain.

    Returns:
        The parts; None if the networks cannot be traced, or if traces disagree with the
        polynomials.
    """
    try:
        found = _Traces(space, widths, runs).parts()
        return found if found is not None and _agrees(space, found) else None
    except ConfigError:
        return None


class _Traces:
    """Traces of networks of full depth, as rows of operators that differ only in their sizes."""

    def __init__(
        self,
        space: SearchSpace,
        widths: Mapping[str, Sequence[int]],
        runs: Mapping[str, ResidualRun],
    ) -> None:
        self._space, self._runs = space, runs
        names = [choice.name for choice in space.choices]
        self._names = names
        self._widths = {names.index(name): tuple(each) for name, each in widths.items()}
        self._largest = space.encode(space.largest()).astype(np.int64)
        self._rng = np.random.default_rng(0)
        self._codes: list[Codes] = []
        self._rows: list[tuple[OperatorSignature, ...]] = []
        self._blocks: tuple[str, ...] = ()

    def parts(self) -> KnownParts | None:
        """Return all operators, grouped by the choices they depend on; None if one does not fit."""
        single = self._singles()
        operators = len(self._rows[0])
        if any(len(row) != operators for row in self._rows):
            return None
        depends = [
            tuple(c for c, row in single.items() if row[i] != self._rows[0][i])
            for i in range(operators)
        ]
        steps = self._settled(depends)
        if steps is None:
            return None
        sizes: dict[tuple[tuple[int, ...], str], list[list[OperatorSignature]]] = defaultdict(list)
        for columns, block, each in zip(depends, self._blocks, steps, strict=True):
            sizes[columns, block].append(each)
        places = tuple(self._place(columns, block) for columns, block in sizes)
        parts = [
            ([Counter[OperatorSignature]()] if block else [])
            + [Counter(part) for part in zip(*each, strict=True)]
            for (_, block), each in sizes.items()
        ]
        return KnownParts(PartTable.of(parts), places)

    def _settled(self, depends: Sequence[tuple[int, ...]]) -> list[list[OperatorSignature]] | None:
        """Return each operator at all of its sizes, after as few random traces as that takes.

        Returns:
            The sizes; None if the largest number of traces does not determine them.
        """
        for _ in range(_ROUNDS):
            for _ in range(_RANDOM):
                self._add(self._randomly())
            found = [self._steps(i, columns) for i, columns in enumerate(depends)]
            settled = [steps for steps in found if steps is not None]
            if len(settled) == len(found):
                return settled
        return None

    def _singles(self) -> dict[int, tuple[OperatorSignature, ...]]:
        """Return traces of networks that differ from the largest in one choice only.

        Returns:
            Operators of such a network, by the column of the choice.
        """
        self._add(self._largest)
        found = {}
        for column, widths in self._widths.items():
            for option in range(min(len(widths) - 1, 2)):
                code = self._largest.copy()
                code[column] = option
                found[column] = self._add(code)
        return found

    def _randomly(self) -> Codes:
        code = self._largest.copy()
        for column, widths in self._widths.items():
            code[column] = self._rng.integers(len(widths))
        return code

    def _add(self, code: Codes) -> tuple[OperatorSignature, ...]:
        row, self._blocks = _traced(self._space, code, self._runs)
        self._codes.append(code)
        self._rows.append(row)
        return row

    def _steps(self, operator: int, columns: tuple[int, ...]) -> list[OperatorSignature] | None:
        """Return an operator at all options that it depends on.

        Returns:
            The sizes; None if the traces do not determine them, or there are too many.
        """
        grid = list(itertools.product(*(self._widths[column] for column in columns)))
        if len(grid) > _MOST:
            return None
        scale = [max(self._widths[column]) for column in columns]
        seen = [[self._widths[c][code[c]] for c in columns] for code in self._codes]
        known, wanted = _monomials(seen, scale), _monomials(grid, scale)
        if np.linalg.matrix_rank(known) < np.linalg.matrix_rank(wanted):
            return None
        rows = [row[operator] for row in self._rows]
        values = np.array([[getattr(row, name) for name in _FIELDS] for row in rows], dtype=float)
        coefficients = np.linalg.lstsq(known, values, rcond=None)[0]
        if (np.rint(known @ coefficients) != values).any():
            return None
        if any(_resized(row, 0, 0, 0, 0) != _resized(rows[0], 0, 0, 0, 0) for row in rows):
            return None
        found = np.rint(wanted @ coefficients).astype(int).tolist()
        return [_resized(rows[0], *each) for each in found]

    def _place(self, columns: tuple[int, ...], block: str) -> _Place:
        options = tuple(len(self._widths[column]) for column in columns)
        for name, run in self._runs.items():
            if block in run.blocks:
                column = self._names.index(name)
                depths = self._space.choices[column].options
                there = tuple(block in run.kept(int(depth)) for depth in depths)
                return _Place(columns, options, (column, there))
        return _Place(columns, options, None)


def _resized(
    step: OperatorSignature, macs: int, read: int, written: int, weights: int
) -> OperatorSignature:
    return replace(step, macs=macs, read_bytes=read, written_bytes=written, weight_bytes=weights)


def _monomials(widths: Sequence[Sequence[int]], scale: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return 1, all scaled widths and all products of two, of shape (networks, monomials)."""
    x = np.array(widths, dtype=float).reshape(len(widths), len(scale)) / np.array(
        scale, dtype=float
    )
    pairs = itertools.combinations_with_replacement(range(x.shape[1]), 2)
    return np.column_stack([np.ones(len(x)), x, *(x[:, a] * x[:, b] for a, b in pairs)])


def _traced(
    space: SearchSpace, code: Codes, runs: Mapping[str, ResidualRun]
) -> tuple[tuple[OperatorSignature, ...], tuple[str, ...]]:
    """Return the operators of a network of full depth, and the block of each, empty if none."""
    architecture = space.decode(code)
    order: list[str] = []

    def mark(name: str, value: Any) -> None:
        order.append(name)
        torch.special.erfinv(value)

    def before(name: str) -> Any:
        return lambda module, args: mark(name, args[0])

    def after(module: object, args: object, output: Tensor) -> None:
        mark("", output)

    with blueprint():
        network = space.build(architecture)
    for name in (block for run in runs.values() for block in run.blocks):
        network.get_submodule(name).register_forward_pre_hook(before(name))
        network.get_submodule(name).register_forward_hook(after)
    workload = trace(network, space.input_shape(architecture))
    steps: list[OperatorSignature] = []
    blocks: list[str] = []
    block, marks = "", iter(order)
    for operator in workload.operators:
        if _MARKER in operator.name:
            block = next(marks)
        else:
            steps.append(OperatorSignature.of(operator, workload))
            blocks.append(block)
    return tuple(steps), tuple(blocks)


def _agrees(space: SearchSpace, found: KnownParts) -> bool:
    """Return whether the parts of some networks of any depth agree with their traces."""
    rng = np.random.default_rng(1)
    options = [len(choice.options) for choice in space.choices]
    drawn = rng.integers(0, options, (_CHECKED, len(options)))
    codes = np.vstack([space.encode(space.smallest()), drawn]).astype(np.int64)
    workloads = [space.workload(space.decode(code)) for code in codes]
    table, chosen = found.of(codes)
    expected = list(_counters(OperatorCountTable.of_workloads(workloads)))
    costs = counted(table.networks(chosen))
    return (
        list(_counters(table.deployed.networks(chosen))) == expected
        and costs["macs"].tolist() == [each.macs for each in workloads]
        and costs["params"].tolist() == [each.params for each in workloads]
        and costs["weight_bytes"].tolist() == [each.weight_bytes for each in workloads]
    )


def _counters(table: OperatorCountTable) -> Iterator[dict[OperatorSignature, int]]:
    for row in table.counts.toarray():
        yield {step: int(n) for step, n in zip(table.steps, row, strict=True) if n}
