"""Choice of a cascade's networks and threshold: laws, and comparison with a brute-force search."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hwnas.deploy.cascades.choice import (
    AccuracyCount,
    CandidateScores,
    CascadeChoice,
    choose,
    pair_tally,
    single_tally,
)
from hwnas.deploy.cascades.runner import CONFIDENCES, probabilities, unsure
from hwnas.errors import ConfigError, InfeasibleError

CLASSES = 3
rules = st.sampled_from(sorted(CONFIDENCES))


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, CandidateScores], np.ndarray]:
    """Draw scores of a few networks on a few images, from a coarse grid so that ties occur."""
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
    """Return the cost of the cheapest pair, with a threshold just above each confidence."""
    costs = []
    for (_, small), (_, big) in itertools.permutations(networks.items(), 2):
        for rule, confidence in CONFIDENCES.items():
            for threshold in confidence(probabilities(small.scores)) + 1e-9:
                tally = pair_tally(small.scores, big.scores, labels, rule, threshold)
                if 0 < tally.share < 1 and tally.accuracy >= target and small.cost < big.cost:
                    costs.append(small.cost + overhead + tally.share * big.cost)
    return min(costs, default=None)


@pytest.mark.slow
@given(cases(), st.floats(0.01, 0.99), st.floats(0, 1))
def test_choose_finds_the_cheapest_network_and_pair(
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


@pytest.mark.slow
@given(cases(), st.floats(0.01, 0.99))
def test_choose_reports_the_accuracy_and_cost_of_the_chosen_pair(
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


@pytest.mark.slow
@given(cases(), rules)
def test_pair_tally_equals_that_of_one_network_at_thresholds_0_and_1(
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


@pytest.mark.slow
@given(cases(), rules, st.floats(0, 1), st.floats(0, 1))
def test_unsure_images_stay_unsure_at_a_higher_threshold(
    case: tuple[dict[str, CandidateScores], np.ndarray], rule: str, one: float, other: float
) -> None:
    scores = next(iter(case[0].values())).scores
    low, high = (unsure(scores, rule, threshold) for threshold in sorted((one, other)))
    assert (high | ~low).all()


@pytest.mark.slow
@given(cases(), st.floats(0.01, 0.99), st.floats(0, 2))
def test_choose_never_finds_a_lower_cost_with_a_margin(
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


def partly_confident_pair() -> tuple[dict[str, CandidateScores], np.ndarray]:
    """Return scores on 100 images: the big network gets all right, the small one 80.

    The small network is unsure only about the 20 images that it gets wrong.
    """
    labels = np.arange(100) % 2
    right = np.where(labels[:, None] == [0, 1], 4.0, -4.0)
    small = right.copy()
    small[80:] *= -0.1
    return {"small": CandidateScores(small, 1.0), "big": CandidateScores(right, 10.0)}, labels


def test_choose_pairs_a_small_and_a_big_network_that_save_cost() -> None:
    networks, labels = partly_confident_pair()
    choice = choose(networks, labels, 0.99, overhead=0.5)
    assert choice.gains
    assert (choice.pair.small, choice.pair.big) == ("small", "big")
    assert choice.pair.tally == AccuracyCount(1.0, 100, 0.2)
    assert choice.pair.cost == pytest.approx(1.0 + 0.5 + 0.2 * 10.0)
    assert choice.single.name == "big"


def test_choice_has_no_gain_if_a_single_network_is_cheaper() -> None:
    networks, labels = partly_confident_pair()
    assert not choose(networks, labels, 0.99, overhead=9.0).gains
    assert choose(networks, labels, 0.7).single.name == "small"
    assert not choose(networks, labels, 0.7).gains
    assert not CascadeChoice(None, None).gains


def test_choose_refuses_unreachable_targets_and_names_the_best_network() -> None:
    networks, labels = partly_confident_pair()
    networks = {"small": networks["small"]}
    with pytest.raises(InfeasibleError, match=r"0\.9 .* best is small with 0\.8000 \(0\.757"):
        choose(networks, labels, 0.9)
    with pytest.raises(InfeasibleError, match="margin of 1 standard errors on 100 validation"):
        choose(networks, labels, 0.79)
    assert choose(networks, labels, 0.79, margin=0).single.name == "small"


def test_choose_applies_the_margin_to_a_network_without_errors() -> None:
    """With 20 of 20 images right, the normal approximation has a standard error of 0."""
    labels = np.arange(20) % 2
    perfect = {"one": CandidateScores(np.where(labels[:, None] == [0, 1], 4.0, -4.0), 1.0)}
    assert choose(perfect, labels, 0.95, margin=1).single.name == "one"
    with pytest.raises(InfeasibleError, match=r"1\.0000 \(0\.9524 with that margin\)"):
        choose(perfect, labels, 0.96, margin=1)


@pytest.mark.parametrize("target", [0, 1, 95, math.nan])
def test_choose_refuses_targets_outside_0_to_1(target: float) -> None:
    with pytest.raises(ConfigError, match=f"^target accuracy is {target}; .* between 0 and 1"):
        choose(*partly_confident_pair(), target)


@pytest.mark.parametrize("margin", [-1, math.inf, math.nan])
def test_choose_refuses_negative_or_infinite_margins(margin: float) -> None:
    with pytest.raises(ConfigError, match=f"^margin is {margin}; .* 0 or more"):
        choose(*partly_confident_pair(), 0.9, margin)


@pytest.mark.slow
@pytest.mark.parametrize("odd", [np.nan, np.inf])
@given(cases(), rules, st.data())
def test_nan_scores_are_never_correct_and_always_unsure(
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
