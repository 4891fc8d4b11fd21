"""Space of NAS-Bench-201's tables (Dong and Yang, ICLR 2020): cells of four nodes and six edges.

The images are those of CIFAR.
"""

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

__all__ = ["EDGES", "OPERATIONS", "NasBench201Space"]

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
_ADDED_TO = (2, 4, 5)  # edges whose output is added to that of an earlier edge
_CONVOLUTIONS = (2, 3)
_NOWHERE = -100
_STAGES = ((16, 32), (32, 16), (64, 8))  # channels and side of the feature map
_CELLS = 5
_CLASSES = 10


@dataclass(frozen=True)
class NasBench201Space:
    """Space of all 15,625 cells, in networks of 16 channels and 3 stages of 5 cells."""

    name: str = "nasbench201"
    options: tuple[int, ...] = (len(OPERATIONS),) * len(EDGES)
    groups: tuple[int, ...] = (0,) * len(EDGES)

    def encode(self, arrays: Arrays) -> Codes:
        """Read ``archs``, ``choice`` or ``ops``, of shape (N, 6), edges in the order of `EDGES`.

        Integers are indices into `OPERATIONS`, or into the names in ``op_names`` or in a
        one-dimensional ``ops`` if the table has one of these.
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
        """Return whether a path without ``none`` leads from the first node to the last, (N,)."""
        return _reached(codes, from_input=True)[:, -1]

    def canonical(self, codes: Codes) -> Codes:
        """Return the cells with ``none`` on edges that are on no path from input to output."""
        return np.where(_dead(codes), 0, codes)

    def isomorphic(self, codes: Codes) -> npt.NDArray[np.int64]:
        """Return numbers that are equal for cells that the benchmark counts as one, of shape (N,).

        These are the cells with equal strings in its notation: 6,466 of all 15,625 (Dong and Yang,
        ICLR 2020). The notation sorts the terms of a sum, omits skips, and reduces what ``none``
        leads to to one symbol. A few cells that compute the same function still have different
        strings.
        """
        written = np.unique([_written(row) for row in codes.tolist()], return_inverse=True)
        return np.asarray(written[1], dtype=np.int64)

    def depth(self, codes: Codes) -> npt.NDArray[np.int64]:
        """Return the number of convolutions on the longest path of each cell, (N,)."""
        longest = np.full((len(codes), 4), _NOWHERE)
        longest[:, 0] = 0
        for edge, (start, end) in enumerate(EDGES):
            layers = np.isin(codes[:, edge], _CONVOLUTIONS)
            there = np.where(codes[:, edge] == 0, _NOWHERE, longest[:, start] + layers)
            longest[:, end] = np.maximum(longest[:, end], there)
        deepest: npt.NDArray[np.int64] = np.maximum(longest[:, -1], 0)
        return deepest

    def parts(self, codes: Codes) -> Assembly:
        """Return the edges, each in all cells, then the rest of the network as one part.

        Edges on no path from input to output are dead.
        """
        dead = _dead(codes)
        places = codes + len(OPERATIONS) * dead
        skeleton = np.zeros((len(codes), 1), dtype=np.int64)
        return Assembly(_parts(), np.hstack([places, skeleton]))

    def steps(self, codes: Codes) -> OperatorCountTable:
        """Return the operator counts of whole networks."""
        return OperatorCountTable.of_parts(self.parts(codes))


def _dead(codes: Codes) -> npt.NDArray[np.bool_]:
    """Return whether each edge is ``none`` or on no path from input to output, (N, 6)."""
    from_input, to_output = _reached(codes, True), _reached(codes, False)
    starts, ends = np.array(EDGES).T
    dead: npt.NDArray[np.bool_] = ~(from_input[:, starts] & to_output[:, ends]) | (codes == 0)
    return dead


def _written(code: list[int]) -> str:
    """Return the last node of a cell as a function of the first, in the benchmark's notation."""
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
    """Return the term of an edge in a sum; ``"#"`` is zero."""
    if operation == "none" or node == "#":
        return "#"
    return node if operation == "skip_connect" else f"({node})@{operation}"


def _reached(codes: Codes, from_input: bool) -> npt.NDArray[np.bool_]:
    """Return whether the first node reaches each node, or each node reaches the last, (N, 4)."""
    nodes = np.zeros((len(codes), 4), dtype=bool)
    nodes[:, 0 if from_input else -1] = True
    order = list(enumerate(EDGES)) if from_input else list(enumerate(EDGES))[::-1]
    for edge, (start, end) in order:
        known, other = (start, end) if from_input else (end, start)
        nodes[:, other] |= nodes[:, known] & (codes[:, edge] != 0)
    return nodes


@cache
def _parts() -> tuple[tuple[Counter[OperatorSignature], ...], ...]:
    """Return the operator counts of each edge's operations, live and dead, then of the rest."""
    edges = tuple(
        tuple(
            _edge(operation, edge in _ADDED_TO, dead)
            for dead in (False, True)
            for operation in OPERATIONS
        )
        for edge in range(len(EDGES))
    )
    return *edges, (_skeleton(),)


def _edge(operation: str, added: bool, dead: bool) -> Counter[OperatorSignature]:
    steps: Counter[OperatorSignature] = Counter()
    for channels, side in _STAGES:
        sketch = OperatorCounter(channels, side, repeat=_CELLS, dead=dead)
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


def _skeleton() -> Counter[OperatorSignature]:
    """Return the operator counts of stem, blocks that halve the resolution, and head."""
    body = OperatorCounter(3, 32).conv(_STAGES[0][0], 3, activation=False)
    for channels, _ in _STAGES[1:]:
        shortcut = OperatorCounter(body.channels, body.side, steps=body.steps).simple(
            "pool", stride=2
        )
        shortcut.conv(channels, activation=False)
        body.simple("activation").conv(channels, 3, stride=2, activation=False)
        body.simple("activation").conv(channels, 3, activation=False).simple("elementwise", 2)
    body.simple("norm").simple("activation").pool().linear(_CLASSES)
    return body.steps
