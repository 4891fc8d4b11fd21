"""Front over all pairs of networks: compared with every pair, rule and threshold."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hwnas.deploy.cascades.choice import AccuracyCount, Pair, pair_tally, single_tally
from hwnas.deploy.cascades.curve import NetworkOutcomes
from hwnas.deploy.cascades.pair_front import nearest_pairs, pair_front
from hwnas.deploy.cascades.runner import CONFIDENCES, confidences

CLASSES = 3
Scores = dict[str, np.ndarray]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Scores, dict[str, float], np.ndarray]:
    """Draw scores and costs of a few networks, from a coarse grid so that ties occur."""
    n = draw(st.integers(2, 10))
    coarse = st.integers(-8, 8).map(lambda v: v / 2)
    names = ["a", "b", "c", "d"][: draw(st.integers(1, 4))]
    scores = {k: draw(arrays.arrays(np.float32, (n, CLASSES), elements=coarse)) for k in names}
    costs = {name: draw(st.integers(1, 12)) / 4 for name in names}
    labels = draw(arrays.arrays(np.int64, n, elements=st.integers(0, CLASSES - 1)))
    return scores, costs, labels


@pytest.mark.slow
@given(cases(), st.sampled_from([0.0, 0.1]))
def test_pair_front_is_that_of_all_pairs_rules_and_thresholds(
    case: tuple[Scores, dict[str, float], np.ndarray], overhead: float
) -> None:
    scores, costs, labels = case
    outcomes = {name: NetworkOutcomes.of(s, labels, costs[name]) for name, s in scores.items()}
    front = pair_front(outcomes, overhead)
    every = [(costs[name], single_tally(s, labels).accuracy) for name, s in scores.items()]
    for small, big in itertools.permutations(scores, 2):
        for rule in CONFIDENCES if costs[small] < costs[big] else ():
            for threshold in confidences(scores[small], rule) + 1e-9:
                tally = pair_tally(scores[small], scores[big], labels, rule, threshold)
                if 0 < tally.share < 1:
                    cost = costs[small] + overhead + tally.share * costs[big]
                    every.append((cost, tally.accuracy))
    for pair in front:  # none is dominated, and each is what its networks give
        tally = pair_tally(scores[pair.small], scores[pair.big], labels, pair.rule, pair.threshold)
        assert tally == pair.tally
        better = (
            (c, a) for c, a in every if c <= pair.cost + 1e-9 and a >= pair.tally.accuracy - 1e-9
        )
        assert all(
            c == pytest.approx(pair.cost) and a == pytest.approx(pair.tally.accuracy)
            for c, a in better
        )
    alone = [(costs[name], each.accuracy) for name, each in outcomes.items()]
    kept = [*alone, *((pair.cost, pair.tally.accuracy) for pair in front)]
    assert all(any(k <= c + 1e-9 and b >= a - 1e-9 for k, b in kept) for c, a in every)


def test_pair_front_finds_networks_that_complement_each_other() -> None:
    """The partner that is right where the small one is unsure beats a more accurate one."""
    right = np.array([True] * 6 + [False] * 4)
    sure = np.linspace(1, 0.1, 10)
    small = NetworkOutcomes(right, dict.fromkeys(CONFIDENCES, sure), 1.0)
    helpful = NetworkOutcomes(~right, dict.fromkeys(CONFIDENCES, sure), 5.0)
    accurate = NetworkOutcomes(
        np.array([True] * 8 + [False] * 2), dict.fromkeys(CONFIDENCES, sure), 5.0
    )
    networks = {"small": small, "helpful": helpful, "accurate": accurate}
    best = max(pair_front(networks), key=lambda pair: pair.tally.accuracy)
    assert (best.small, best.big, best.tally.accuracy) == ("small", "helpful", 1.0)
    assert best.cost == pytest.approx(1 + 0.4 * 5)
    assert pair_front({}) == []
    assert pair_front({"small": small}) == []


def test_nearest_pairs_names_each_pair_once_nearest_first() -> None:
    def pair(small: str, accuracy: float) -> Pair:
        return Pair(small, "big", "margin", 0.5, AccuracyCount(accuracy, 100, 0.1), 1.0)

    front = [pair("a", 0.5), pair("a", 0.6), pair("b", 0.8), pair("c", 0.9)]
    found = nearest_pairs(front, 0.78, 2)
    assert [(each.small, each.tally.accuracy) for each in found] == [("b", 0.8), ("c", 0.9)]
    assert [each.small for each in nearest_pairs(front, 0.59, 9)] == ["a", "b", "c"]
