"""Physical features of a network: counts, multiply-accumulates, bytes and roofline times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces import OperatorCountTable, OperatorKind, OperatorSignature

__all__ = ["FEATURES", "MACHINES", "Machine", "amounts", "physical_features", "quantities"]

_HEAVY: tuple[OperatorKind, ...] = ("conv", "pointwise", "depthwise", "linear", "matmul")
_LIGHT: tuple[OperatorKind, ...] = (
    "activation", "elementwise", "pool", "norm", "other", "layer_norm",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """Hardware in the roofline model (Williams et al., CACM 2009).

    Attributes:
        gmacs: Largest rate of multiply-accumulates, in 1e9 per second.
        gbytes: Bandwidth between memory and the arithmetic units, in 1e9 bytes per second.
        overhead_us: Smallest time of an operator, in microseconds.
        depthwise: Share of ``gmacs`` that depthwise convolutions reach.
        eager: Whether the hardware runs operators that a compiler drops or folds.
    """

    gmacs: float
    gbytes: float
    overhead_us: float
    depthwise: float = 0.2
    eager: bool = False

    def milliseconds(self, step: OperatorSignature) -> float:
        """Return an operator's time: overhead plus the longer of computing and moving bytes."""
        if step.kind == "view" or (not self.eager and (step.dead or step.kind == "norm")):
            return 0.0
        rate = self.gmacs * (self.depthwise if step.kind == "depthwise" else 1.0)
        busy = max(step.macs / rate, step.bytes_moved / self.gbytes) * 1e-6
        return 1e-3 * self.overhead_us + busy


MACHINES = {
    "small_cpu": Machine(4, 4, 20, 0.3),
    "cpu_core": Machine(30, 15, 2, 0.2),
    "eager_cpu": Machine(30, 15, 8, 0.1, eager=True),
    "busy_gpu": Machine(3000, 500, 5, 0.05, eager=True),
    "waiting_gpu": Machine(3000, 500, 50, 0.05, eager=True),
    "array": Machine(1000, 10, 1, 0.02),
}
"""Orders of magnitude for kinds of hardware; the predictor finds which of them a device is like."""


def _live(*kinds: OperatorKind) -> Callable[[OperatorSignature], bool]:
    return lambda step: step.kind in kinds and not step.dead


def _amounts() -> dict[str, Callable[[OperatorSignature], float]]:
    """Return the functions whose values are summed over the operators of a network, by name."""

    def counted(test: Callable[[OperatorSignature], bool]) -> Callable[[OperatorSignature], float]:
        return lambda step: float(test(step))

    def weighed(
        test: Callable[[OperatorSignature], bool], name: str
    ) -> Callable[[OperatorSignature], float]:
        return lambda step: float(getattr(step, name)) if test(step) else 0.0

    table: dict[str, Callable[[OperatorSignature], float]] = {}
    for kind in (*_HEAVY[:3], *_LIGHT[:3]):
        table[f"{kind}_count"] = counted(_live(kind))
    table["matrix_count"] = counted(_live("linear", "matmul"))
    table["dead_count"] = counted(lambda step: step.dead)
    for kind in _HEAVY[:3]:
        table[f"{kind}_macs"] = weighed(_live(kind), "macs")
    table["matrix_macs"] = weighed(_live("linear", "matmul"), "macs")
    table["large_kernel_macs"] = weighed(lambda s: s.kernel_size > 3 and not s.dead, "macs")
    table["heavy_bytes"] = weighed(_live(*_HEAVY), "bytes_moved")
    table["light_bytes"] = weighed(_live(*_LIGHT), "bytes_moved")
    table["weight_bytes"] = weighed(lambda step: not step.dead, "weight_bytes")
    table["dead_bytes"] = weighed(lambda step: step.dead, "bytes_moved")
    for name, machine in MACHINES.items():
        table[f"{name}_ms"] = machine.milliseconds
    return table


_AMOUNTS = _amounts()
FEATURES = tuple(_AMOUNTS)


def quantities(steps: OperatorCountTable) -> npt.NDArray[np.float64]:
    """Return counts, multiply-accumulates, bytes and milliseconds, (N, len(FEATURES))."""
    return steps.total(_quantities_of(steps.steps))


@lru_cache(maxsize=4)  # networks of one space, however many, consist of the same operators
def _quantities_of(steps: tuple[OperatorSignature, ...]) -> npt.NDArray[np.float64]:
    table = [[amount(step) for amount in _AMOUNTS.values()] for step in steps]
    return np.array(table, dtype=np.float64).reshape(-1, len(FEATURES))


def physical_features(steps: OperatorCountTable) -> npt.NDArray[np.float64]:
    """Return the logarithms of 1 + `quantities`, in small units, (N, len(FEATURES))."""
    features: npt.NDArray[np.float64] = np.log1p(quantities(steps) / _UNITS)
    return features


def amounts(features: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the `quantities` of networks from their `physical_features`."""
    found: npt.NDArray[np.float64] = np.expm1(features) * _UNITS
    return found


def _unit(name: str) -> float:
    units: Sequence[tuple[str, float]] = (("_macs", 1e5), ("_bytes", 1e4), ("_ms", 1e-3))
    return next((unit for ending, unit in units if name.endswith(ending)), 1.0)


_UNITS = np.array([_unit(name) for name in FEATURES])
