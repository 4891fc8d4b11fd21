"""Which pair, and when it hands over: laws, against trying everything."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hwnas.deploy.cascade_choice import (
    AccuracyCount,
    CandidateScores,
    CascadeChoice,
    choose,
    pair_tally,
    single_tally,
)
from hwnas.deploy.cascade_runner import CONFIDENCES, probabilities, unsure
from hwnas.errors import ConfigError, InfeasibleError

CLASSES = 3
rules = st.sampled_from(sorted(CONFIDENCES))


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, CandidateScores], np.ndarray]:
    """A few networks on a few images; scores from a coarse grid, so that some are equally sure."""
    n = draw(st.integers(2, 12))
    coarse = st.integers(-8, 8).map(lambda v: v / 2)
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    networks = {
        name: CandidateScores(
            draw(arrays.arrays(np.float32, (n, CLASSES), elements=coarse)),
            draw(st.integers(1, 40)) / 4,
        )
        for name in names
    }
    labels = draw(arrays.arrays(np.int64, n, elements=st.integers(0, CLASSES - 1)))
    return networks, labels


def brute_force(
    networks: dict[str, CandidateScores], labels: np.ndarray, target: float, overhead: float
) -> float | None:
    """Cost of the cheapest pair, by trying a threshold just above every confidence."""
    costs = []
    for (_, small), (_, big) in itertools.permutations(networks.items(), 2):
        for rule, confidence in CONFIDENCES.items():
            for threshold in confidence(probabilities(small.scores)) + 1e-9:
                tally = pair_tally(small.scores, big.scores, labels, rule, threshold)
                if 0 < tally.share < 1 and tally.accuracy >= target and small.cost < big.cost:
                    costs.append(small.cost + overhead + tally.share * big.cost)
    return min(costs, default=None)


@given(cases(), st.floats(0.01, 0.99), st.floats(0, 1))
def test_nothing_is_cheaper_than_what_is_chosen(
    case: tuple[dict[str, CandidateScores], np.ndarray], target: float, overhead: float
) -> None:
    networks, labels = case
    best = brute_force(networks, labels, target, overhead)
    alone = [k.cost for k in networks.values() if single_tally(k.scores, labels).accuracy >= target]
    if best is None and not alone:
        with pytest.raises(InfeasibleError):
            choose(networks, labels, target, 0.0, overhead)
        return
    choice = choose(networks, labels, target, 0.0, overhead)
    assert (None if choice.single is None else choice.single.cost) == min(alone, default=None)
    assert (None if choice.pair is None else choice.pair.cost) == pytest.approx(best)
    chosen = choice.pair if choice.gains else choice.single
    assert chosen is not None
    assert all(chosen.cost <= cost for cost in alone)
    assert chosen.tally.accuracy >= target


@given(cases(), st.floats(0.01, 0.99))
def test_what_is_said_of_a_pair_is_what_it_does(
    case: tuple[dict[str, CandidateScores], np.ndarray], target: float
) -> None:
    networks, labels = case
    try:
        pair = choose(networks, labels, target, 0.0).pair
    except InfeasibleError:
        return
    if pair is not None:
        small, big = networks[pair.small], networks[pair.big]
        tally = pair_tally(small.scores, big.scores, labels, pair.rule, pair.threshold)
        assert tally == pair.tally
        assert pair.cost == pytest.approx(small.cost + tally.share * big.cost)


@given(cases(), rules)
def test_at_zero_the_small_network_answers_alone_and_at_one_the_big_one(
    case: tuple[dict[str, CandidateScores], np.ndarray], rule: str
) -> None:
    networks, labels = case
    small, big = (
        next(iter(networks.values())).scores,
        np.roll(next(iter(networks.values())).scores, 1),
    )
    nobody, all_of_them = (pair_tally(small, big, labels, rule, t) for t in (0.0, 1.0))
    assert nobody == single_tally(small, labels)
    assert (all_of_them.accuracy, all_of_them.share) == (single_tally(big, labels).accuracy, 1.0)


@given(cases(), rules, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_threshold_sends_on_whatever_a_lower_one_does(
    case: tuple[dict[str, CandidateScores], np.ndarray], rule: str, one: float, other: float
) -> None:
    scores = next(iter(case[0].values())).scores
    low, high = (unsure(scores, rule, threshold) for threshold in sorted((one, other)))
    assert (high | ~low).all()


@given(cases(), st.floats(0.01, 0.99), st.floats(0, 2))
def test_a_margin_makes_nothing_cheaper(
    case: tuple[dict[str, CandidateScores], np.ndarray], target: float, margin: float
) -> None:
    networks, labels = case
    try:
        careful = choose(networks, labels, target, margin)
    except InfeasibleError:
        return
    bold = choose(networks, labels, target, 0.0)
    for one, other in ((bold.single, careful.single), (bold.pair, careful.pair)):
        assert other is None or (one is not None and one.cost <= other.cost)
        assert other is None or other.tally.at_least(margin) >= target


def sure_of_some() -> tuple[dict[str, CandidateScores], np.ndarray]:
    """Of a hundred images a small network is sure of the eighty it knows; a big one knows all."""
    labels = np.arange(100) % 2
    right = np.where(labels[:, None] == [0, 1], 4.0, -4.0)
    small = right.copy()
    small[80:] *= -0.1
    return {"small": CandidateScores(small, 1.0), "big": CandidateScores(right, 10.0)}, labels


def test_the_big_network_is_asked_where_the_small_one_is_unsure() -> None:
    networks, labels = sure_of_some()
    choice = choose(networks, labels, 0.99, overhead=0.5)
    assert choice.gains
    assert (choice.pair.small, choice.pair.big) == ("small", "big")
    assert choice.pair.tally == AccuracyCount(1.0, 100, 0.2)
    assert choice.pair.cost == pytest.approx(1.0 + 0.5 + 0.2 * 10.0)
    assert choice.single.name == "big"


def test_a_cascade_that_costs_more_is_no_gain() -> None:
    networks, labels = sure_of_some()
    assert not choose(networks, labels, 0.99, overhead=9.0).gains
    assert choose(networks, labels, 0.7).single.name == "small"
    assert not choose(networks, labels, 0.7).gains
    assert not CascadeChoice(None, None).gains


def test_what_cannot_be_reached_names_the_best() -> None:
    networks, labels = sure_of_some()
    networks = {"small": networks["small"]}
    with pytest.raises(
        InfeasibleError, match=r"0\.9 .* best is small with 0\.8000, which is 0\.757"
    ):
        choose(networks, labels, 0.9)
    with pytest.raises(InfeasibleError, match="margin of 1 standard errors on 100 validation"):
        choose(networks, labels, 0.79)
    assert choose(networks, labels, 0.79, margin=0).single.name == "small"


def test_a_network_that_is_always_right_is_not_certain_to_be() -> None:
    """Of twenty images all: the normal approximation has a standard error of 0 there."""
    labels = np.arange(20) % 2
    perfect = {"one": CandidateScores(np.where(labels[:, None] == [0, 1], 4.0, -4.0), 1.0)}
    assert choose(perfect, labels, 0.95, margin=1).single.name == "one"
    with pytest.raises(InfeasibleError, match=r"1\.0000, which is 0\.9524 with that margin"):
        choose(perfect, labels, 0.96, margin=1)


@pytest.mark.parametrize("target", [0, 1, 95, math.nan])
def test_targets_that_are_none(target: float) -> None:
    with pytest.raises(ConfigError, match=f"^target accuracy is {target}; .* between 0 and 1"):
        choose(*sure_of_some(), target)


@pytest.mark.parametrize("margin", [-1, math.inf, math.nan])
def test_margins_that_are_none(margin: float) -> None:
    with pytest.raises(ConfigError, match=f"^margin is {margin}; .* 0 or more"):
        choose(*sure_of_some(), 0.9, margin)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
@given(cases(), rules, st.data())
def test_scores_that_are_no_numbers_are_never_right_and_always_go_on(
    odd: float, case: tuple[dict[str, CandidateScores], np.ndarray], rule: str, data: st.DataObject
) -> None:
    networks, labels = case
    scores = networks["a"].scores.copy()
    lost = np.array(data.draw(st.lists(st.booleans(), min_size=len(labels), max_size=len(labels))))
    scores[lost, data.draw(st.integers(0, CLASSES - 1))] = odd
    assert unsure(scores, rule, 0.0).tolist() == lost.tolist()
    assert unsure(scores, rule, 0.5)[lost].all()
    assert single_tally(scores, labels).accuracy <= (~lost).mean() + 1e-9
    threshold = data.draw(st.floats(0, 1))
    tally = pair_tally(scores, scores, labels, rule, threshold)
    assert tally.accuracy == single_tally(scores, labels).accuracy
    networks = {"a": CandidateScores(scores, 1.0), "b": CandidateScores(networks["a"].scores, 2.0)}
    try:
        pair = choose(networks, labels, target=0.01, margin=0.0).pair
    except InfeasibleError:
        return
    if pair is not None:
        assert 0 <= pair.threshold < 1
        again = pair_tally(scores, networks["b"].scores, labels, pair.rule, pair.threshold)
        assert again == pair.tally
