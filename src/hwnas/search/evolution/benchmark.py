"""Benchmark of the speed of evolution and of the quality of its front."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from hwnas.errors import ConfigError
from hwnas.search.engine.threads import one_thread
from hwnas.search.evolution.box import Box
from hwnas.search.evolution.dtlz import dtlz2, dtlz2_front
from hwnas.search.evolution.loop import evolve
from hwnas.search.objectives.front import hypervolume

__all__ = ["EvolveRow", "bench_evolve", "front_quality"]

VARIABLES = 24
_REFERENCE = 1.1
_GRID = 5_000
# Most points for which the exact hypervolume is fast, by number of objectives.
_VOLUME_POINTS = {2: 10**6, 3: 10**6, 4: 3_000, 5: 500}
_FEW = 100


@dataclass(frozen=True)
class EvolveRow:
    """Result of one benchmarked evolution.

    Attributes:
        algorithm: Name of the algorithm.
        population: Number of individuals in a generation.
        individuals_per_second: Population times generations over the wall time, evaluation
            included.
        hypervolume: Hypervolume of the last front, with reference 1.1 in each objective; for a very
            large front, that of a subset spread over it.
        igd: Inverted generational distance: mean distance from a grid on the true front to the
            nearest point of the last front.
        device: Device of the evolution.
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
        algorithm: Name of the algorithm; see `hwnas.search.evolve`.
        population: Number of individuals in a generation, at least 4.
        generations: Number of generations, at least 1; the first one is random.
        objectives: Number of objectives, 2 to 24.
        device: ``"cpu"`` or ``"cuda"``.
        seed: Seed of the random numbers.

    Raises:
        ConfigError: An argument is out of range.
        DeviceError: There is no such device.
    """
    if not 2 <= objectives <= VARIABLES:
        raise ConfigError(f"objectives is {objectives}; expected 2 to {VARIABLES}")
    score, box = dtlz2(objectives), Box.cube(VARIABLES)
    with one_thread():  # the test function is too cheap for several threads
        evolve(box, score, 100, 3, algorithm, device=device)  # the first use of a device is slow
        start = time.perf_counter()
        found = evolve(box, score, population, generations, algorithm, seed=seed, device=device)
        seconds = time.perf_counter() - start
    volume, distance = front_quality(found.front_losses)
    speed = population * generations / seconds
    return EvolveRow(algorithm, population, speed, volume, distance, device)


def front_quality(front: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the hypervolume and the inverted generational distance of a front of DTLZ2.

    Args:
        front: Losses of the front, (N, objectives).
    """
    objectives = front.shape[1]
    most = _VOLUME_POINTS.get(objectives, _FEW)
    inside = front[(front < _REFERENCE).all(1)]
    spread = inside[np.linspace(0, len(inside) - 1, min(most, len(inside))).astype(int)]
    volume = hypervolume(spread, np.full(objectives, _REFERENCE))
    grid = dtlz2_front(objectives, _GRID)
    distance, _ = scipy.spatial.cKDTree(front).query(grid)
    return volume, float(distance.mean())
