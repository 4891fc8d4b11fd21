from __future__ import annotations

import numpy as np
import pytest

from hwnas.predictors.blocks import blocks_of_codes, rows_of
from hwnas.predictors.cost_table import CostTable
from hwnas.predictors.coverage import NORMAL_90, adapted, learn_widening
from hwnas.predictors.experience import Experience, Lessons, Source, Widening
from hwnas.predictors.gaussian_process import Mixture, Parts, Prior

POOL = np.arange(150)


def known(table: CostTable, but: str) -> Experience:
    blocks = rows_of(blocks_of_codes(table.space, table.codes), POOL)
    names = [name for name in table.devices if name != but]
    sources = (Source(n, blocks, np.log(table.costs[POOL, table.column(n)])) for n in names)
    return Experience(tuple(sources), blocks)


def share_inside(table: CostTable, new: str) -> float:
    experience = known(table, new)
    parts = experience.parts(experience.see(blocks_of_codes(table.space, table.codes)))
    logs = np.log(table.costs[:, table.column(new)])
    process = adapted(parts, experience.prior, POOL, 10, lambda row: float(logs[row]))
    mean, std = process.predict(parts.rows(range(150, 600)))
    reach = NORMAL_90 * learn_widening(experience, 10).of(process) * std
    return float((np.abs(logs[150:] - mean) <= reach).mean())


def test_widened_intervals_hold_nine_tenths_of_new_devices(table: CostTable) -> None:
    shares = [share_inside(table, name) for name in table.devices]
    assert 0.85 <= np.mean(shares) <= 0.97
    assert min(shares) > 0.7


def test_two_devices_are_too_few_to_learn_from(table: CostTable) -> None:
    some = known(table, "server")
    assert learn_widening(Experience(some.sources[:2], some.reference), 10) == Widening()


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
