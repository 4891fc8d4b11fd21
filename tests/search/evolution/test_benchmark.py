from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from hwnas.errors import ConfigError
from hwnas.search.evolution.benchmark import bench_evolve, front_quality
from hwnas.search.evolution.dtlz import dtlz2, dtlz2_front


def test_front_quality_of_the_true_front_equals_the_known_volume() -> None:
    volume, distance = front_quality(dtlz2_front(3, 20_000))
    assert volume == pytest.approx(1.1**3 - np.pi / 6, abs=0.01)
    assert distance < 0.006
    volume, _ = front_quality(dtlz2_front(2, 5_000))
    assert volume == pytest.approx(1.1**2 - np.pi / 4, abs=0.001)


def test_front_quality_of_a_distant_front_is_low() -> None:
    volume, distance = front_quality(2 * dtlz2_front(3, 500))
    assert volume < 0.05
    assert distance > 0.9


def test_dtlz2_equals_values_of_its_definition() -> None:
    points = torch.full((2, 12), 0.5).double()
    points[1] = 0.0
    found = dtlz2(3)(points)
    assert found[0].tolist() == pytest.approx([0.5, 0.5, 0.5**0.5])
    assert found[1].tolist() == pytest.approx([1 + 10 * 0.25, 0, 0])


def test_bench_evolve_improves_with_more_generations() -> None:
    short = bench_evolve("nsga2", 200, 10)
    began = time.perf_counter()
    long = bench_evolve("nsga2", 200, 60)
    most_s = time.perf_counter() - began
    assert (short.algorithm, short.population, short.device) == ("nsga2", 200, "cpu")
    assert long.hypervolume > short.hypervolume + 0.1
    assert long.igd < 0.5 * short.igd
    assert long.individuals_per_second > 1_000
    assert 200 * 60 / most_s <= long.individuals_per_second < 4 * 200 * 60 / most_s


@pytest.mark.parametrize("objectives", [2, 4, 6])
def test_bench_evolve_accepts_other_numbers_of_objectives(objectives: int) -> None:
    row = bench_evolve("nsga3", 60, 10, objectives)
    assert 0 <= row.hypervolume < 1.1**objectives
    assert row.igd > 0


@pytest.mark.parametrize("objectives", [1, 25])
def test_bench_evolve_refuses_numbers_of_objectives_out_of_range(objectives: int) -> None:
    with pytest.raises(ConfigError, match=f"objectives is {objectives}; expected 2 to 24"):
        bench_evolve(objectives=objectives)
