"""The evolution experiment: its baseline loop and its summary."""

import pytest

from experiments.evolution.moocore_loop import nsga2
from experiments.evolution.run import CPU, SPEED, summary
from experiments.record import Row
from hwnas.search.evolution.benchmark import VARIABLES, bench_evolve, front_quality


def test_baseline_loop_reaches_the_front_quality_of_hwnas() -> None:
    volume, distance = front_quality(nsga2(100, 100, 0, VARIABLES, 3))
    ours = bench_evolve("nsga2", 100, 100)
    assert volume == pytest.approx(ours.hypervolume, rel=0.1)
    assert distance == pytest.approx(ours.igd, rel=0.3)


def test_summary_takes_the_median_of_the_ratios_of_rounds() -> None:
    speeds = {"hwnas": (10.0, 40.0, 100.0), "pymoo": (1.0, 2.0, 50.0)}
    rows = [
        Row(metric, f"nsga2-40 {side}", turn, value, "", 40)
        for metric in (SPEED, CPU)
        for side, values in speeds.items()
        for turn, value in enumerate(values)
    ]
    found = {(row.metric, row.subject): row for row in summary(rows)}
    ratio = found[SPEED, "nsga2-40 hwnas/pymoo"]
    assert (ratio.value, ratio.spread) == (10.0, {"least": 2.0, "most": 20.0})
    assert found[CPU, "nsga2-40 pymoo/hwnas"].value == 0.1
