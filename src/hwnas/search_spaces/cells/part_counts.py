"""Operator counts of NAS-Bench-201's networks, drafted edge by edge instead of traced.

Shapes: N cells of 6 edges and 4 nodes. The counts follow PyTorch's execution: an edge with ``none``
is left out, a node whose incoming edges are all ``none`` is a tensor of zeros, and operators that
no output depends on still run, but are marked as dead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.cost_model.operator_counter import OperatorCounter
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature, PartTable
from hwnas.search_spaces.tabular.nasbench201 import EDGES

__all__ = ["Skeleton", "chosen_parts", "part_table"]

_NODES = 4
_LAST = _NODES - 1
_ABSENT = 0
_PLAIN, _OF_ONE = 1, 2  # sums of two tensors, and of one tensor with itself
_DEAD = 2  # offset from a live sum to the dead one of the same kind
_PAIRS = tuple(
    (node, count) for node in range(2, _NODES) for count in range(2, node + 1)
)  # places of sums: the node, and the least number of its edges that are not ``none``

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Skeleton = tuple[tuple[int, int, int], ...]
"""Channels, height and width of each stage."""


def part_table(
    stages: Skeleton, cells: int, operations: Sequence[str], rest: Counter[OperatorSignature]
) -> PartTable:
    """Return the operator counts of each operation of an edge, of zeros, of sums, and of the rest.

    Args:
        stages: Sizes of the feature maps.
        cells: Number of cells in each stage.
        operations: Options of each edge.
        rest: Operator counts of all but the cells.
    """

    def both(*drafts: Callable[[OperatorCounter], object]) -> list[Counter[OperatorSignature]]:
        """Return each draft live, then each draft dead."""
        return [_drafted(draft, stages, cells, dead) for dead in (False, True) for draft in drafts]

    edges = [both(*(_edge(operation) for operation in operations))] * len(EDGES)
    zeros = [[Counter[OperatorSignature](), *both(_zeros)]] * _LAST
    sums = [[Counter[OperatorSignature](), *both(_sum_of(2), _sum_of(1))]] * len(_PAIRS)
    return PartTable.of([*edges, *zeros, *sums, [rest]])


def chosen_parts(codes: Integers, nothing: int, skip: int, options: int) -> Integers:
    """Return the index of the chosen part of a `part_table` for each place, (N, places).

    Args:
        codes: Index of each edge's operation, (N, 6).
        nothing: Index of the operation ``none``.
        skip: Index of the identity operation.
        options: Number of operations.
    """
    carries, skips = codes != nothing, codes == skip
    needed = _needed(carries)
    ends = np.array([end for _, end in EDGES])
    brought = np.stack([carries[:, ends == node].sum(1) for node in range(_NODES)], axis=1)
    edges = codes + options * ~needed[:, ends]
    zeros = np.where(brought == 0, 1 + ~needed, _ABSENT)[:, 1:]
    of_one = _sums_of_one(carries, skips, brought)
    sums = [
        np.where(
            brought[:, node] >= count,
            np.where(of_one[:, node] & (count == 2), _OF_ONE, _PLAIN) + _DEAD * ~needed[:, node],
            _ABSENT,
        )
        for node, count in _PAIRS
    ]
    rest = np.zeros((len(codes), 1), dtype=np.int64)
    return np.hstack([edges, zeros, np.column_stack(sums), rest])


def _needed(carries: Flags) -> Flags:
    """Return whether the output depends on each node, (N, 4)."""
    needed = np.zeros((len(carries), _NODES), dtype=bool)
    needed[:, _LAST] = True
    for edge, (start, end) in reversed(list(enumerate(EDGES))):
        needed[:, start] |= carries[:, edge] & needed[:, end]
    return needed


def _sums_of_one(carries: Flags, skips: Flags, brought: Integers) -> Flags:
    """Return whether the first two tensors added at each node are the same tensor, (N, 4)."""
    every = np.arange(_NODES)
    tensors = np.tile(every, (len(carries), 1))  # id of each node's tensor, new or passed on
    found = np.zeros(tensors.shape, dtype=bool)
    for node in range(1, _NODES):
        incoming = [(edge, start) for edge, (start, end) in enumerate(EDGES) if end == node]
        # Tensor that each edge brings: a node's tensor, or a new one with an id of its own.
        brings = np.stack(
            [
                np.where(skips[:, edge], tensors[:, start], _NODES + edge)
                for edge, start in incoming
            ],
            axis=1,
        )
        order = np.argsort(~carries[:, [edge for edge, _ in incoming]], axis=1, kind="stable")
        brings = np.take_along_axis(brings, order, axis=1)
        passed_on = (brought[:, node] == 1) & (brings[:, 0] < _NODES)
        tensors[passed_on, node] = brings[passed_on, 0]
        if len(incoming) > 1:
            found[:, node] = (brought[:, node] >= 2) & (brings[:, 0] == brings[:, 1])
    return found


def _drafted(
    draft: Callable[[OperatorCounter], object], stages: Skeleton, cells: int, dead: bool
) -> Counter[OperatorSignature]:
    steps: Counter[OperatorSignature] = Counter()
    for channels, height, width in stages:
        draft(OperatorCounter(channels, height, width, cells, dead, steps))
    return steps


def _edge(operation: str) -> Callable[[OperatorCounter], object]:
    if operation == "avg_pool_3x3":
        return lambda sketch: sketch.simple("pool")
    if operation in ("none", "skip_connect"):
        return lambda sketch: sketch
    size = 1 if operation == "nor_conv_1x1" else 3
    return lambda sketch: sketch.simple("activation").conv(sketch.channels, size, activation=False)


def _zeros(sketch: OperatorCounter) -> object:
    """Draft a node of zeros: PyTorch creates them from a tensor of the shape and detaches them."""
    return sketch.simple("other").view()


def _sum_of(tensors: int) -> Callable[[OperatorCounter], object]:
    return lambda sketch: sketch.simple("elementwise", inputs=tensors)
