"""Statistics of the ranking experiment, on simulated accuracies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from experiments.ranking.agreement import Alone, of_alone, of_method, of_supernet, tau_b
from experiments.ranking.methods import METHODS, RIVAL
from hwnas.search.training import TrainConfig

ORDERED = np.linspace(0.8, 0.9, 8)
ALONE = Alone(np.array([ORDERED, ORDERED]), 0)


def noisy(seed: int, count: int = 16, noise: float = 0.02) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.linspace(0.8, 0.9, count) + rng.normal(0, noise, count)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3)), min_size=2, max_size=8
    )
)
def test_tau_b_with_counts_equals_tau_of_repeated_networks(
    networks: list[tuple[int, int, int]],
) -> None:
    a, b, counts = (np.array(each, dtype=float) for each in zip(*networks, strict=True))
    rows = np.repeat(np.arange(len(a)), counts.astype(int))
    several = [each[rows] for each in (a, b)]
    expected = kendalltau(*several).statistic if len(rows) > 1 else np.nan
    assert tau_b(a, b, counts) == pytest.approx(expected, nan_ok=True)


def test_quotient_is_one_for_scores_that_agree_like_trainings() -> None:
    assert ALONE.ceiling == pytest.approx(1)
    assert ALONE.quotient(ORDERED[None]) == pytest.approx(1)
    assert ALONE.quotient(-ORDERED[None]) == pytest.approx(-1)
    interval = ALONE.interval(lambda some: some.quotient(ORDERED[None]))
    assert interval == {"least": pytest.approx(1), "most": pytest.approx(1)}


def test_regret_is_the_gap_of_the_best_of_the_top_three() -> None:
    assert ALONE.regret(ORDERED) == 0
    assert ALONE.regret(-ORDERED) == pytest.approx(ORDERED[-1] - ORDERED[2])


def test_interval_contains_tau_and_narrows_with_more_networks() -> None:
    widths = []
    for count in (16, 200):
        alone = Alone(np.array([noisy(seed, count) for seed in range(3)]), 0)
        shared = noisy(3, count)[None]
        found = alone.interval(lambda some, shared=shared: some.tau(shared))
        assert found["least"] < alone.tau(shared) < found["most"]
        widths.append(found["most"] - found["least"])
    assert widths[1] < widths[0] / 2


def test_of_method_shows_no_lead_of_a_method_equal_to_its_rival() -> None:
    alone = Alone(np.array([noisy(seed) for seed in range(3)]), 0)
    rival, method = (np.array([noisy(seed), noisy(seed + 1)]) for seed in (5, 7))
    rows = {row.metric: row for row in of_method(alone, method, rival, "teacher")}
    ahead = rows["tau above uniform's"]
    assert ahead.value == pytest.approx(alone.tau(method) - alone.tau(rival))
    assert ahead.spread["least"] < 0 < ahead.spread["most"]
    assert [row.metric for row in of_method(alone, rival, rival, RIVAL)] == ["90 % interval"]


def test_equal_scores_give_rows_without_a_tau() -> None:
    flat = np.full(8, 0.5)
    values = {row.metric: row.value for row in of_supernet(ALONE, flat, "uniform", 0)}
    assert values["tau"] is None
    assert values["tau_quotient"] is None
    assert values["accuracy"] == 0.5
    useless = Alone(np.array([flat, ORDERED]), 0)
    assert next(row for row in of_alone(useless, range(8)) if row.metric == "tau").value is None


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_valid_training_settings(method: str) -> None:
    config = TrainConfig(budget_minutes=5).adjusted(METHODS[method])
    assert config.budget_minutes == 5
    assert config.sampling == METHODS[method]["sampling"]
