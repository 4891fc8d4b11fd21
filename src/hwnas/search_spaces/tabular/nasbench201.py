"""NAS-Bench-201 (Dong and Yang, ICLR 2020): cells of four nodes and six edges, CIFAR images."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from hwnas.errors import DataError
from hwnas.search_spaces.sketch import Sketch
from hwnas.search_spaces.steps import Assembly, Step, StepTable
from hwnas.search_spaces.tabular.table import Arrays, Codes, checked_codes, integer_matrix

__all__ = ["EDGES", "OPERATIONS", "NasBench201Space"]

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
_ADDED_TO = (2, 4, 5)  # edges that end where an earlier one does, so that a sum is due
_CONVOLUTIONS = (2, 3)
_NOWHERE = -100
_STAGES = ((16, 32), (32, 16), (64, 8))  # channels and side of the feature map
_CELLS = 5
_CLASSES = 10


@dataclass(frozen=True)
class NasBench201Space:
    """All 15,625 cells, in the skeleton of 16 channels and 3 stages of 5 cells."""

    name: str = "nasbench201"
    options: tuple[int, ...] = (len(OPERATIONS),) * len(EDGES)
    groups: tuple[int, ...] = (0,) * len(EDGES)

    def encode(self, arrays: Arrays) -> Codes:
        """Read ``archs``, ``choice`` or ``ops``, of shape (N, 6), edges in the order of `EDGES`.

        Integers are indices into `OPERATIONS`, or into the names in ``op_names`` or in a
        one-dimensional ``ops`` where the table has such.
        """
        codes = integer_matrix(arrays)
        if codes is None:
            raise DataError(f"the table has no integer array of six edges; it has {list(arrays)}")
        names = arrays.get("op_names", arrays.get("ops"))
        if names is not None and names.ndim == 1:
            unknown = set(names) - set(OPERATIONS)
            if unknown:
                raise DataError(
                    f"unknown operations {sorted(map(str, unknown))}; {self.name} has {OPERATIONS}"
                )
            checked_codes(codes, self.name, (len(names),) * len(EDGES))
            codes = np.array([OPERATIONS.index(name) for name in names], dtype=np.int64)[codes]
        return checked_codes(codes, self.name, self.options)

    def connected(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Whether a path without a ``none`` leads from the first node to the last."""
        return _reached(codes, from_input=True)[:, -1]

    def canonical(self, codes: Codes) -> Codes:
        """With ``none`` on edges that are on no path from input to output."""
        return np.where(_dead(codes), 0, codes)

    def isomorphic(self, codes: Codes) -> npt.NDArray[np.int64]:
        """Numbers that are equal for cells that the benchmark counts as one, of shape (N,).

        Those are the cells that it writes alike: 6,466 of all 15,625 (Dong and Yang, ICLR 2020).
        Its notation sorts the terms of a sum, and leaves out skips and what ``none`` leads to; a
        few cells that compute the same are written in two ways all the same.
        """
        written = np.unique([_written(row) for row in codes.tolist()], return_inverse=True)
        return np.asarray(written[1], dtype=np.int64)

    def depth(self, codes: Codes) -> npt.NDArray[np.int64]:
        """Convolutions on the longest path of a cell."""
        longest = np.full((len(codes), 4), _NOWHERE)
        longest[:, 0] = 0
        for edge, (start, end) in enumerate(EDGES):
            layers = np.isin(codes[:, edge], _CONVOLUTIONS)
            there = np.where(codes[:, edge] == 0, _NOWHERE, longest[:, start] + layers)
            longest[:, end] = np.maximum(longest[:, end], there)
        deepest: npt.NDArray[np.int64] = np.maximum(longest[:, -1], 0)
        return deepest

    def parts(self, codes: Codes) -> Assembly:
        """The edges, each in all cells; then the skeleton.

        Edges on no path from input to output are dead.
        """
        dead = _dead(codes)
        places = codes + len(OPERATIONS) * dead
        skeleton = np.zeros((len(codes), 1), dtype=np.int64)
        return Assembly(_parts(), np.hstack([places, skeleton]))

    def steps(self, codes: Codes) -> StepTable:
        """Steps of the whole network."""
        return StepTable.of_parts(self.parts(codes))


def _dead(codes: Codes) -> npt.NDArray[np.bool_]:
    """Of shape (N, 6): which edges are on no path from input to output, or nothing themselves."""
    from_input, to_output = _reached(codes, True), _reached(codes, False)
    starts, ends = np.array(EDGES).T
    dead: npt.NDArray[np.bool_] = ~(from_input[:, starts] & to_output[:, ends]) | (codes == 0)
    return dead


def _written(code: list[int]) -> str:
    """What the last node of a cell computes of the first, in the benchmark's notation."""
    nodes = ["0"]
    for node in (1, 2, 3):
        terms = [
            _term(OPERATIONS[operation], nodes[start])
            for operation, (start, end) in zip(code, EDGES, strict=True)
            if end == node
        ]
        nodes.append("+".join(sorted(terms)))
    return nodes[-1]


def _term(operation: str, node: str) -> str:
    """What an edge brings to a sum; ``"#"`` is nothing."""
    if operation == "none" or node == "#":
        return "#"
    return node if operation == "skip_connect" else f"({node})@{operation}"


def _reached(codes: Codes, from_input: bool) -> npt.NDArray[np.bool_]:
    """Of shape (N, 4): which nodes the first node reaches, or which reach the last."""
    nodes = np.zeros((len(codes), 4), dtype=bool)
    nodes[:, 0 if from_input else -1] = True
    order = list(enumerate(EDGES)) if from_input else list(enumerate(EDGES))[::-1]
    for edge, (start, end) in order:
        known, other = (start, end) if from_input else (end, start)
        nodes[:, other] |= nodes[:, known] & (codes[:, edge] != 0)
    return nodes


@cache
def _parts() -> tuple[tuple[Counter[Step], ...], ...]:
    """For each edge, its steps for each operation, alive and dead; then the skeleton's."""
    edges = tuple(
        tuple(
            _edge(operation, edge in _ADDED_TO, dead)
            for dead in (False, True)
            for operation in OPERATIONS
        )
        for edge in range(len(EDGES))
    )
    return *edges, (_skeleton(),)


def _edge(operation: str, added: bool, dead: bool) -> Counter[Step]:
    steps: Counter[Step] = Counter()
    for channels, side in _STAGES:
        sketch = Sketch(channels, side, repeat=_CELLS, dead=dead)
        if operation == "none":
            sketch.simple("elementwise")
        elif operation == "avg_pool_3x3":
            sketch.simple("pool")
        elif operation != "skip_connect":
            kernel_size = 1 if operation == "nor_conv_1x1" else 3
            sketch.simple("activation").conv(channels, kernel_size, activation=False)
        if added:
            sketch.simple("elementwise", inputs=2)
        steps += sketch.steps
    return steps


def _skeleton() -> Counter[Step]:
    """Stem, the two blocks that halve the resolution, and the head."""
    body = Sketch(3, 32).conv(_STAGES[0][0], 3, activation=False)
    for channels, _ in _STAGES[1:]:
        shortcut = Sketch(body.channels, body.side, steps=body.steps).simple("pool", stride=2)
        shortcut.conv(channels, activation=False)
        body.simple("activation").conv(channels, 3, stride=2, activation=False)
        body.simple("activation").conv(channels, 3, activation=False).simple("elementwise", 2)
    body.simple("norm").simple("activation").pool().linear(_CLASSES)
    return body.steps
