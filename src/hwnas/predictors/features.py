"""A workload as numbers that a cost is likely to be simple in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces import Operator, Workload

__all__ = ["FEATURE_NAMES", "features", "roofline_ms"]

# Costs of one core of a present-day CPU, as orders of size; the regression corrects them.
_OVERHEAD_MS = 0.002
_MACS_PER_MS = {"depthwise": 4e6, "conv": 2e7, "pointwise": 3e7, "linear": 1e7, "matmul": 2e7}
_BYTES_PER_MS = 1e7

FEATURE_NAMES = (
    "log_roofline_ms",
    "log_macs",
    "log_depthwise_macs",
    "log_bytes_moved",
    "log_weight_bytes",
    "log_operators",
    "log_convolutions",
    "log_gates",
)


def _runs(operator: Operator) -> bool:
    """Whether a compiler leaves the operator in: not dead, not folded into its neighbour."""
    return not operator.dead and operator.kind not in ("view", "norm")


def roofline_ms(workload: Workload) -> float:
    """Time if every operator took its overhead and the longer of computing and moving bytes.

    The roofline model (Williams et al., CACM 2009) with constants of one CPU core: an order of
    size, in milliseconds, not an estimate.
    """
    total = 0.0
    for operator in filter(_runs, workload.operators):
        compute = operator.macs / _MACS_PER_MS.get(operator.kind, 1e7)
        total += _OVERHEAD_MS + max(compute, workload.bytes_moved(operator) / _BYTES_PER_MS)
    return total


def features(workloads: Sequence[Workload]) -> npt.NDArray[np.float64]:
    """Features of shape (len(workloads), len(FEATURE_NAMES)), all logarithms."""
    return np.array([_row(workload) for workload in workloads], dtype=np.float64)


def _row(workload: Workload) -> list[float]:
    running = [operator for operator in workload.operators if _runs(operator)]
    counts = workload.counts()
    sizes = (
        roofline_ms(workload),
        1 + workload.macs,
        1 + sum(op.macs for op in running if op.kind == "depthwise"),
        1 + sum(workload.bytes_moved(op) for op in running),
        1 + workload.weight_bytes,
        len(running),
        1 + counts["conv"] + counts["depthwise"] + counts["pointwise"],
        1 + counts["pool"],
    )
    return [float(np.log(size)) for size in sizes]
