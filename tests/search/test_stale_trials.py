"""Earlier trials when a search is resumed with the same or with other inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from hwnas.errors import InfeasibleError, RunError
from hwnas.search import Fidelity, Objective, ScoreStore, SearchResult, Sharing

TARGET = "cpu-onnxruntime-fp32-b1-t1"
ACCURACY = Objective("accuracy", "maximize")
PARAMS = Objective("params", "minimize")
LATENCY = Objective("latency_ms", "minimize", TARGET)


@pytest.fixture(autouse=True)
def own_parts_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def searched(folder: Path, trials: int = 10, **given: object) -> SearchResult:
    from own_parts import Dials, EvenDials, Slower, search_with

    given = {
        "objectives": [ACCURACY, LATENCY],
        "evaluator": EvenDials(),
        "costs": {LATENCY.label: Slower(1)},
        "scores": ScoreStore(folder / "scores.jsonl"),
        "study": folder / "study.db",
        "sampler": "random",
        **given,
    }
    return search_with(Dials(6), trials=trials, **given)


def history(folder: Path) -> list[FrozenTrial]:
    return optuna.load_study(study_name="search", storage=f"sqlite:///{folder}/study.db").trials


def ids(result: SearchResult) -> set[str]:
    return {trial.candidate.id for trial in result.trials}


def test_repeated_search_evaluates_nothing_again(tmp_path: Path) -> None:
    first = searched(tmp_path)
    again = searched(tmp_path)
    assert again.evaluations_made == 0
    assert again.trials == first.trials


@pytest.mark.parametrize("scores", ["kept", "lost"])
def test_other_predictions_give_the_same_networks_new_costs(tmp_path: Path, scores: str) -> None:
    """Regression: two searches whose predictors differ by a factor of 3 shared one front."""
    from own_parts import Slower

    first = searched(tmp_path)
    if scores == "lost":  # the study keeps the evaluation of a trial, too
        (tmp_path / "scores.jsonl").unlink()
    tripled = searched(tmp_path, costs={LATENCY.label: Slower(3)})
    assert tripled.evaluations_made == 0, "no evaluation depends on a predictor"
    before = {trial.candidate.id: trial.values for trial in first.trials}
    after = {trial.candidate.id: trial.values for trial in tripled.trials}
    assert before.keys() == after.keys()
    for name, values in after.items():
        assert values[LATENCY.label] == 3 * before[name][LATENCY.label]
        assert values["accuracy"] == before[name]["accuracy"]


@pytest.mark.slow
def test_stale_trials_stay_as_history_and_are_marked(tmp_path: Path) -> None:
    from own_parts import Slower

    first = searched(tmp_path)
    old = [trial.values for trial in history(tmp_path)]
    searched(tmp_path, costs={LATENCY.label: Slower(3)})
    trials = history(tmp_path)
    assert [t.values for t in trials[: len(old)]] == old
    marks = [t.user_attrs.get("stale") for t in trials]
    assert marks[: len(old)] == ["objectives, limits or predicted costs changed"] * len(old)
    assert set(marks[len(old) :]) == {None}
    complete = [t for t in trials[len(old) :] if t.state is TrialState.COMPLETE]
    assert len(complete) == len(first.trials)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["evaluator", "fidelity"])
def test_another_evaluator_or_fidelity_evaluates_again(tmp_path: Path, what: str) -> None:
    from own_parts import EvenDials

    searched(tmp_path)
    changed: object = EvenDials("even-dials of other weights")
    if what == "fidelity":
        changed = replace(Fidelity(), share=0.5)
    again = searched(tmp_path, **{what: changed})
    assert again.evaluations_made == 10 == len(again.trials)
    marks = {t.user_attrs.get("stale") for t in history(tmp_path)}
    assert marks == {"weights, data, task, evaluator or fidelity changed", None}


@pytest.mark.slow
def test_evaluations_are_reused_after_a_change_back(tmp_path: Path) -> None:
    from own_parts import EvenDials

    first = searched(tmp_path)
    searched(tmp_path, evaluator=EvenDials("other"))
    back = searched(tmp_path)
    assert back.evaluations_made == 0
    assert ids(back) == ids(first)


@pytest.mark.slow
def test_changed_limit_applies_to_earlier_evaluations(tmp_path: Path) -> None:
    searched(tmp_path)
    slowest = 3.0
    limited = searched(tmp_path, objectives=[ACCURACY, replace(LATENCY, limit=slowest)])
    assert limited.evaluations_made == 0
    kept = [t.estimates[LATENCY.label].interval90[1] <= slowest for t in limited.trials]
    assert [t.feasible for t in limited.trials] == kept
    with pytest.raises(InfeasibleError):
        searched(tmp_path, objectives=[ACCURACY, replace(LATENCY, limit=0.5)])


def test_additional_objective_starts_a_new_study(tmp_path: Path) -> None:
    first = searched(tmp_path)
    more = searched(tmp_path, objectives=[ACCURACY, LATENCY, PARAMS])
    assert more.evaluations_made == 0
    assert ids(more) == ids(first)
    assert all(PARAMS.label in trial.values for trial in more.trials)
    names = optuna.get_all_study_names(f"sqlite:///{tmp_path}/study.db")
    assert sorted(names) == ["search", "search superseded-1"]


def test_more_trials_extend_the_earlier_ones(tmp_path: Path) -> None:
    first = searched(tmp_path)
    more = searched(tmp_path, trials=16)
    assert more.evaluations_made == 6
    assert more.trials[:10] == first.trials


@pytest.mark.slow
def test_search_refuses_a_shared_study_with_other_costs(tmp_path: Path) -> None:
    from own_parts import Slower

    url = f"sqlite:///{tmp_path}/shared.db"
    searched(tmp_path / "one", sharing=Sharing(url, "shared", "one"))
    with pytest.raises(RunError, match=f"has another costs@{TARGET}") as caught:
        searched(
            tmp_path / "other",
            sharing=Sharing(url, "shared", "other"),
            costs={LATENCY.label: Slower(3)},
        )
    assert "\n" not in str(caught.value)
