from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hwnas.search.objectives.front import non_dominated
from hwnas.search.tables import (
    ObjectiveTable,
    read_objective_table,
    read_test_table,
    tight_box,
    wide_box,
)
from hwnas.search.tables.table import Column
from hwnas.search_spaces.tabular import CategoricalSpace, NasBench201Space

ALL = np.arange(64)


def of(files: Path) -> ObjectiveTable:
    return read_objective_table([f"{files}/acc.npz:val:max", f"{files}/lat.npz:macs:min"])


def test_share_of_all_networks_is_one_and_of_none_zero(files: Path) -> None:
    for box in (tight_box(of(files)), wide_box(of(files))):
        assert box.share(ALL) == pytest.approx(1.0)
        assert box.share(ALL[:0]) == 0.0


def test_share_of_the_front_is_one_and_grows_with_points(files: Path) -> None:
    table = of(files)
    front = ALL[non_dominated(table.losses)]
    for box in (tight_box(table), wide_box(table)):
        assert box.share(front) == pytest.approx(1.0)
        shares = [box.share(front[:n]) for n in range(len(front) + 1)]
        assert shares == sorted(shares)


def two(accuracy: list[float], cost: list[float]) -> ObjectiveTable:
    codes = np.arange(len(accuracy))[:, None]
    space = CategoricalSpace((0,), (len(accuracy),))
    columns = (
        Column(Path("a"), "acc", "", "maximize", np.array(accuracy)),
        Column(Path("b"), "ms", "", "minimize", np.array(cost)),
    )
    return ObjectiveTable(space, codes, columns)


def test_tight_and_wide_box_equal_hand_worked_shares() -> None:
    table = two([90.0, 85.0, 70.0], [10.0, 5.0, 1.0])
    # Wide: up to 20 + 2 points below the best and to a cost of 10 + .9, linear.
    whole = 22 * 0.9 + 17 * 5 + 2 * 4
    assert wide_box(table).share(np.array([0])) == pytest.approx(22 * 0.9 / whole)
    # Tight: 10 points below the best, costs up to 11 in logarithms; the third is outside.
    whole = 10 * np.log(1.1) + 5 * np.log(2)
    tight = tight_box(table)
    assert tight.share(np.array([0])) == pytest.approx(10 * np.log(1.1) / whole)
    assert tight.share(np.array([0, 1])) == pytest.approx(1.0)
    assert tight.share(np.array([2])) == 0.0


def test_tight_box_scores_fractions_and_percentages_alike() -> None:
    percent, fraction = two([90.0, 85.0], [2.0, 1.0]), two([0.9, 0.85], [2.0, 1.0])
    for rows in ([0], [1]):
        assert tight_box(percent).share(np.array(rows)) == pytest.approx(
            tight_box(fraction).share(np.array(rows))
        )


def test_tight_box_ignores_networks_without_a_path_to_the_output() -> None:
    # The second is accurate by mistake: no path leads to its output.
    codes = np.array([[3] * 6, [0] * 6, [1] * 6])
    columns = (
        Column(Path("a"), "acc", "", "maximize", np.array([90.0, 95.0, 85.0])),
        Column(Path("b"), "ms", "", "minimize", np.array([10.0, 1.0, 5.0])),
    )
    table = ObjectiveTable(NasBench201Space(), codes, columns)
    assert tight_box(table).share(np.array([1])) == 0.0
    assert tight_box(table).share(np.array([0, 2])) == pytest.approx(1.0)


def test_tight_box_scores_a_front_on_the_test_table(files: Path) -> None:
    table = of(files)
    test = tight_box(read_test_table(table, [f"{files}/acc.npz:test:max"]))
    chosen = ALL[non_dominated(table.losses)]
    assert 0.8 < test.share(chosen) <= 1.0
