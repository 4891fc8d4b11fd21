from __future__ import annotations

import numpy as np
import pytest

from hwnas.predictors.blocks import blocks_of_codes, rows_of
from hwnas.predictors.cost_table import CostTable
from hwnas.predictors.coverage import NORMAL_90, adapted, learn_widening
from hwnas.predictors.experience import Experience, Lessons, Source, Widening
from hwnas.predictors.gaussian_process import Mixture, Parts, Prior

POOL = np.arange(150)


@pytest.fixture(scope="module")
def known(table: CostTable) -> Experience:
    blocks = rows_of(blocks_of_codes(table.space, table.codes), POOL)
    names = ("slow", "core", "gpu", "chip")
    sources = (Source(n, blocks, np.log(table.costs[POOL, table.column(n)])) for n in names)
    return Experience(tuple(sources), blocks)


def test_widened_intervals_hold_nine_tenths_of_a_new_device(
    table: CostTable, known: Experience
) -> None:
    blocks = blocks_of_codes(table.space, table.codes)
    parts = known.parts(known.see(blocks))
    logs = np.log(table.costs[:, table.column("server")])
    process = adapted(parts, known.prior, POOL, 10, lambda row: float(logs[row]))
    mean, std = process.predict(parts.rows(range(150, 600)))
    reach = NORMAL_90 * learn_widening(known, 10).of(process) * std
    inside = np.abs(logs[150:] - mean) <= reach
    assert 0.8 <= inside.mean() <= 0.99


def test_two_devices_are_too_few_to_learn_from(known: Experience) -> None:
    assert learn_widening(Experience(known.sources[:2], known.reference), 10) == Widening()


def test_surprise_counts_as_far_as_the_exponent_says() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 2))
    theta = np.array([[0.0, -4.0]])
    calm = Mixture(Parts({"line": x}, {}), x @ [1.0, 0.5], 1.0, theta)
    wild = Mixture(Parts({"line": x}, {}), 3 * rng.standard_normal(20), 1.0, theta)
    assert calm.surprise < 0.5 < 2 < wild.surprise
    assert Widening(2.0, 0.0).of(wild) == 2.0
    assert Widening(1.0, 1.0).of(wild) == pytest.approx(wild.surprise)
    assert Widening(1.0, 0.5).of(wild) == pytest.approx(wild.surprise**0.5)


def test_lessons_give_the_widening_of_the_nearest_number_of_samples() -> None:
    table = {5: Widening(5.0), 20: Widening(20.0)}
    lessons = Lessons(np.zeros((0, 2)), Prior.vague(1), table)
    assert lessons.widening(4).factor == 5.0
    assert lessons.widening(11).factor == 20.0
    assert lessons.widening(9).factor == 5.0
    assert Lessons(np.zeros((0, 2)), Prior.vague(1)).widening(7) == Widening()
