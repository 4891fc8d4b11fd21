"""How fast evolution is, and how near to the front it comes."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from hwnas.errors import ConfigError
from hwnas.search.evolution.box import Box
from hwnas.search.evolution.dtlz import dtlz2, dtlz2_front
from hwnas.search.evolution.loop import evolve
from hwnas.search.front import hypervolume
from hwnas.search.threads import one_thread

__all__ = ["EvolveRow", "bench_evolve", "front_quality"]

VARIABLES = 24
_REFERENCE = 1.1
_GRID = 5_000
_VOLUME_POINTS = {2: 10**6, 3: 10**6, 4: 3_000, 5: 500}  # more take long
_FEW = 100


@dataclass(frozen=True)
class EvolveRow:
    """One evolution.

    Attributes:
        algorithm: Its name.
        population: How many live at a time.
        individuals_per_second: Population times generations over the wall time, evaluation
            included.
        hypervolume: Of the last front, up to 1.1 in each objective; of points spread over it where
            it is too large to be exact.
        igd: Mean distance from a grid of the true front to the nearest point of the last.
        device: Where it ran.
    """

    algorithm: str
    population: int
    individuals_per_second: float
    hypervolume: float
    igd: float
    device: str


def bench_evolve(
    algorithm: str = "nsga2",
    population: int = 100_000,
    generations: int = 20,
    objectives: int = 3,
    device: str = "cpu",
    seed: int = 0,
) -> EvolveRow:
    """Evolve DTLZ2 with 24 variables.

    Args:
        algorithm: See `hwnas.search.evolve`.
        population: At least 4.
        generations: At least 1; the first is the random one.
        objectives: 2 to 24.
        device: ``"cpu"`` or ``"cuda"``.
        seed: Of everything random.

    Raises:
        ConfigError: One of them is out of range.
        DeviceError: There is no such device.
    """
    if not 2 <= objectives <= VARIABLES:
        raise ConfigError(f"objectives is {objectives}; expected 2 to {VARIABLES}")
    score, box = dtlz2(objectives), Box.cube(VARIABLES)
    with one_thread():  # the test function is too cheap for more
        evolve(box, score, 100, 3, algorithm, device=device)  # the first use of a device is slow
        start = time.perf_counter()
        found = evolve(box, score, population, generations, algorithm, seed=seed, device=device)
        seconds = time.perf_counter() - start
    volume, distance = front_quality(found.front_losses)
    speed = population * generations / seconds
    return EvolveRow(algorithm, population, speed, volume, distance, device)


def front_quality(front: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Hypervolume and inverted generational distance of a front of DTLZ2.

    Args:
        front: Shape (N, objectives).
    """
    objectives = front.shape[1]
    most = _VOLUME_POINTS.get(objectives, _FEW)
    inside = front[(front < _REFERENCE).all(1)]
    spread = inside[np.linspace(0, len(inside) - 1, min(most, len(inside))).astype(int)]
    volume = hypervolume(spread, np.full(objectives, _REFERENCE))
    grid = dtlz2_front(objectives, _GRID)
    distance, _ = cKDTree(front).query(grid)
    return volume, float(distance.mean())
