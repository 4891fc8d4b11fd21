"""Successive halving: the better candidates are promoted, and none is evaluated twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState

from hwnas.errors import ConfigError
from hwnas.search import Objective, SearchResult
from hwnas.search.engine.rungs import Rungs, best, best_of_similar
from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search.objectives.front import non_dominated
from hwnas.search_spaces import Candidate

ACCURACY = Objective("accuracy", "maximize")
BOTH = [ACCURACY, Objective("params", "minimize")]
THREE = Rungs((0.1, 0.5, 1.0), keep=3)


@pytest.fixture(autouse=True)
def own_parts_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


@dataclass
class Metered:
    """Evaluator whose error falls with the fidelity; it records each evaluation and its share."""

    key: str = "metered"
    paid: list[tuple[str, float]] = field(default_factory=list)

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        from own_parts import EvenDials

        self.paid.append((candidate.id, fidelity.share))
        found = EvenDials().evaluate(candidate, fidelity)
        error = (int(candidate.id, 16) % 100 / 100 - 0.5) * (1 - fidelity.share) * 0.2
        return Evaluation({"accuracy": found.values["accuracy"] + error}, {}, 1, "validation")


def searched(objectives: list[Objective], trials: int = 60, **more: object) -> SearchResult:
    from own_parts import Dials, search_with

    settings = {"evaluator": Metered(), "rungs": THREE, "sampler": "random", **more}
    return search_with(Dials(8), objectives, trials=trials, batch=6, **settings)


@pytest.mark.parametrize("objectives", [[ACCURACY], BOTH], ids=["one", "two"])
class TestSearchWithRungs:
    @pytest.mark.slow
    def test_promotes_few_candidates_and_evaluates_none_twice(
        self, objectives: list[Objective], tmp_path: Path
    ) -> None:
        evaluator = Metered()
        result = searched(objectives, evaluator=evaluator, study=tmp_path / "study.db")
        assert result.tried == 60
        first, second = result.rungs
        assert (first.share, first.evaluated, second.share) == (0.1, 60, 0.5)
        assert 60 / 3 - 6 <= first.promoted == second.evaluated <= 60 * 0.6
        assert second.promoted == len(result.trials) < second.evaluated
        shares = [share for _, share in evaluator.paid]
        assert [shares.count(s) for s in THREE.rungs] == [60, first.promoted, second.promoted]
        assert len(set(evaluator.paid)) == len(evaluator.paid)
        assert sum(shares) < 40, "a good part of the cost is saved"
        full = {name for name, share in evaluator.paid if share == 1.0}
        assert {t.candidate.id for t in result.trials} == full

    @pytest.mark.slow
    def test_study_records_promotions(self, objectives: list[Objective], tmp_path: Path) -> None:
        result = searched(objectives, study=tmp_path / "study.db")
        plain = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / 'study.db'}")
        by_state = {state: [t for t in plain.trials if t.state is state] for state in TrialState}
        for trial in by_state[TrialState.COMPLETE]:
            assert [r["promoted"] for r in trial.user_attrs["rungs"]] == [True, True]
            assert [r["share"] for r in trial.user_attrs["rungs"]] == [0.1, 0.5]
        stopped = [t for t in by_state[TrialState.PRUNED] if "rungs" in t.user_attrs]
        complete = [r for t in by_state[TrialState.COMPLETE] for r in t.user_attrs["rungs"]]
        best_at = {
            share: max(r["values"]["accuracy"] for r in complete if r["share"] == share)
            for share in (0.1, 0.5)
        }
        assert len(stopped) == 60 - len(result.trials)
        for trial in stopped:
            assert [r["promoted"] for r in trial.user_attrs["rungs"]][-1] is False
            if len(objectives) == 1:
                last = trial.user_attrs["rungs"][-1]
                assert last["values"]["accuracy"] < best_at[last["share"]]
                told = [r["values"]["accuracy"] for r in trial.user_attrs["rungs"]]
                assert list(trial.intermediate_values.values()) == told

    @pytest.mark.slow
    def test_resumes_without_repeating_an_evaluation(
        self, objectives: list[Objective], tmp_path: Path
    ) -> None:
        evaluator, path = Metered(), tmp_path / "study.db"
        searched(objectives, 30, evaluator=evaluator, study=path)
        again = searched(objectives, 60, evaluator=evaluator, study=path)
        assert again.tried == 60
        assert len(set(evaluator.paid)) == len(evaluator.paid)
        assert len({name for name, _ in evaluator.paid}) == 60


def test_one_rung_gives_the_search_without_rungs() -> None:
    def found(result: SearchResult) -> list[tuple[str, float]]:
        return [(t.candidate.id, t.values["accuracy"]) for t in result.trials]

    assert found(searched(BOTH, rungs=Rungs())) == found(searched(BOTH, rungs=Rungs((1.0,), 5)))
    assert searched(BOTH, rungs=Rungs()).rungs == ()


def test_candidate_that_fails_at_a_rung_is_recorded_as_failed() -> None:
    from own_parts import Moody

    result = searched(BOTH, evaluator=Moody())
    assert result.failed
    assert result.tried == 60


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40),
    st.integers(1, 40),
)
def test_best_takes_non_dominated_candidates_first(rows: list[tuple[int, int]], count: int) -> None:
    table = np.array(rows, dtype=float)
    chosen, front = best(table, count), np.flatnonzero(non_dominated(table))
    assert len(chosen) == min(count, len(rows))
    taken, first = ({rows[i] for i in index} for index in (chosen, front))
    assert taken <= first or first <= taken, "others only once the front is taken"


@pytest.mark.parametrize(
    ("rungs", "keep", "message"),
    [
        ((), 3, r"rungs is \[\]; expected shares above 0 that rise to 1"),
        ((0.5, 0.5, 1.0), 3, "expected shares above 0 that rise to 1"),
        ((0.1, 0.5), 3, "expected shares above 0 that rise to 1"),
        ((0.0, 1.0), 3, "expected shares above 0 that rise to 1"),
        ((0.1, 1.0), 1, "search.fidelity.keep is 1; expected at least 2"),
    ],
)
def test_rungs_refuse_invalid_shares_and_keep(
    rungs: tuple[float, ...], keep: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Rungs(rungs, keep)


@given(
    rows=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30),
    size=st.integers(2, 4),
)
def test_best_of_similar_promotes_one_candidate_per_cost_group(
    rows: list[tuple[float, float]], size: int
) -> None:
    table = np.array(rows)
    chosen = best_of_similar(table, size)
    rungs = Rungs((0.5, 1.0), size, "similar_cost")
    assert len(chosen) == rungs.left(len(table)) == -(-len(table) // size)
    assert (
        int(np.argmin(table[:, 0])) in chosen or table[list(chosen), 0].min() == table[:, 0].min()
    )
    order = np.sort(table[:, 1])
    kept = np.sort(table[list(chosen), 1])
    for group, cost in enumerate(kept):
        assert order[group * size] <= cost <= order[min(len(order), (group + 1) * size) - 1]


def test_best_of_similar_promotes_large_networks_behind_small_ones() -> None:
    small = [(0.1, 1.0), (0.2, 1.1)]
    large = [(0.5, 8.0), (0.4, 9.0)]
    table = np.array(small + large)
    assert best_of_similar(table, 2) == {0, 3}
    assert best(table, 2) != {0, 3}


@given(st.integers(1, 60), st.sampled_from(["all", "similar_cost"]))
def test_rungs_cost_adds_up_the_shares_of_all_rungs(count: int, compare: str) -> None:
    rungs = Rungs((0.1, 0.4, 1.0), 3, compare)  # type: ignore[arg-type]
    second = rungs.left(count)
    third = rungs.left(second)
    assert rungs.cost(count) == pytest.approx(0.1 * count + 0.3 * second + 0.6 * third)
    assert Rungs().cost(count) == count
