from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from hwnas.errors import ConfigError, InfeasibleError, WorkerError
from hwnas.search import (
    Evaluation,
    Fidelity,
    InProcess,
    Objective,
    RayActors,
    ScoreStore,
    SearchOptions,
    SearchResult,
    StudyStorage,
    run_search,
)
from hwnas.search.engine.failure import Outcome
from hwnas.search.engine.result import FailedTrial, Scored
from hwnas.search.objectives.front import non_dominated
from hwnas.search.objectives.objective import Reduction, losses
from hwnas.search.samplers import SAMPLERS
from hwnas.search_spaces import Candidate, ProductSpace, TrainingSpace

TARGET = "cpu-onnxruntime-fp32-b1-t1"
OTHER = "cpu-openvino-fp32-b1-t1"
ACCURACY = Objective("accuracy", "maximize")
PARAMS = Objective("params", "minimize")
LATENCY = Objective("latency_ms", "minimize", TARGET)


@pytest.fixture(autouse=True)
def own_parts_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def searched(
    trials: int = 20, sampler: str = "random", dials: int = 6, **given: object
) -> SearchResult:
    from own_parts import Dials, EvenDials, search_with

    given = {"objectives": [ACCURACY, PARAMS], "evaluator": EvenDials(), **given}
    return search_with(Dials(dials), trials=trials, sampler=sampler, **given)


def plain(path: Path) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="search", storage=f"sqlite:///{path}").trials


def ids(result: SearchResult) -> list[str]:
    return [trial.candidate.id for trial in result.trials]


def found(result: SearchResult) -> list[tuple[str, dict[str, float]]]:
    return [(trial.candidate.id, dict(trial.values)) for trial in result.trials]


# The BoTorch sampler would take minutes here; test_botorch.py tests it.
@pytest.mark.parametrize("sampler", [*sorted({*SAMPLERS} - {"qlognehvi"}), "own_parts:stubborn"])
class TestEverySampler:
    """Search with each named sampler, and with a user's own."""

    def run(self, sampler: str, trials: int = 24, **given: object) -> SearchResult:
        options = {"n_startup_trials": 10} if sampler in ("gp", "tpe") else {}
        trials = min(trials, 14) if sampler == "gp" else trials
        return searched(trials, sampler, sampler_options=options, **given)

    @pytest.mark.slow
    def test_evaluates_no_network_twice(self, sampler: str, tmp_path: Path) -> None:
        result = self.run(sampler, study=tmp_path / "study.db")
        assert len(set(ids(result))) == len(result.trials) == result.evaluations_made
        trials = plain(tmp_path / "study.db")
        complete = [t for t in trials if t.state is TrialState.COMPLETE]
        assert [t.user_attrs["candidate"] for t in complete] == ids(result)
        for trial in trials:
            if trial.state is not TrialState.COMPLETE:
                assert trial.state is TrialState.PRUNED
                earlier = trials[trial.user_attrs["twin"]]
                assert earlier.number < trial.number
                assert earlier.state is TrialState.COMPLETE
                assert earlier.user_attrs["candidate"] == trial.user_attrs["candidate"]

    @pytest.mark.slow
    def test_finds_the_same_trials_with_the_same_seed(self, sampler: str) -> None:
        assert found(self.run(sampler, seed=3)) == found(self.run(sampler, seed=3))

    @pytest.mark.slow
    def test_resumes_with_the_remaining_trials(self, sampler: str, tmp_path: Path) -> None:
        from own_parts import EvenDials

        path, evaluator = tmp_path / "study.db", EvenDials()
        first = self.run(sampler, 10, study=path, evaluator=evaluator)
        again = self.run(sampler, 14, study=path, evaluator=evaluator)
        assert found(again)[:10] == found(first)
        assert len(set(ids(again))) == 14
        assert (again.evaluations_made, evaluator.asked) == (4, 14)

    @pytest.mark.slow
    def test_front_keeps_the_limit(self, sampler: str) -> None:
        limit = 9 if sampler == "proxy-order" else 5  # that one goes from the largest down
        limited = Objective("params", "minimize", limit=limit)
        result = self.run(sampler, objectives=[ACCURACY, limited])
        assert all(trial.values["params"] <= limit for trial in result.front)
        assert any(trial.values["params"] > limit for trial in result.trials)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["guided", "nsga2", "nsga3", "tpe"])
def test_learning_sampler_beats_random_search(sampler: str) -> None:
    def best(name: str) -> float:
        results = [searched(80, name, dials=10, seed=s, objectives=[ACCURACY]) for s in range(3)]
        return sum(r.front[0].values["accuracy"] for r in results)

    assert best(sampler) > best("random")


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["growth", "guided", "reinforce"])
def test_resumed_search_equals_an_uninterrupted_one(sampler: str, tmp_path: Path) -> None:
    whole = searched(24, sampler, seed=5)
    searched(12, sampler, seed=5, study=tmp_path / "study.db")
    assert found(searched(24, sampler, seed=5, study=tmp_path / "study.db")) == found(whole)


def test_search_proposes_other_networks_for_another_seed() -> None:
    assert ids(searched(seed=0)) != ids(searched(seed=1))


def test_search_ends_when_the_space_is_exhausted() -> None:
    from own_parts import Dials

    result = searched(1000, dials=2)
    assert Dials(2).size() == 5
    assert len(set(ids(result))) == len(result.trials) == 5


def test_front_contains_the_non_dominated_trials() -> None:
    result = searched(40, objectives=[ACCURACY, PARAMS])
    table = losses(result.objectives, [trial.values for trial in result.trials])
    expected = {t.number for t, on in zip(result.trials, non_dominated(table), strict=True) if on}
    assert {trial.number for trial in result.front} == expected
    accuracies = [trial.values["accuracy"] for trial in result.front]
    assert accuracies == sorted(accuracies, reverse=True)


def test_given_architectures_are_evaluated_first_and_once() -> None:
    from own_parts import Dials

    smallest, largest = Dials().smallest(), Dials().largest()
    result = searched(6, first=[smallest, largest, smallest])
    assert [t.candidate.network for t in result.trials[:2]] == [smallest, largest]
    assert len(set(ids(result))) == 6


def test_batch_size_does_not_change_the_number_of_trials() -> None:
    for batch in (1, 3, 50):
        assert len(searched(10, batch=batch).trials) == 10


def test_trial_has_predicted_and_counted_costs() -> None:
    from own_parts import FormulaCost, total

    result = searched(8, objectives=[ACCURACY, LATENCY], costs={LATENCY.label: FormulaCost()})
    for trial in result.trials:
        steps = total(trial.candidate.network)
        assert trial.values[LATENCY.label] == 1 + 0.5 * steps
        assert trial.counted["params"] == trial.values["params"] == steps
        assert trial.estimates[LATENCY.label].kind == "table"
        assert trial.standard_errors == {"accuracy": 0.01}


@pytest.mark.parametrize("reduce", ["worst", "sum"])
def test_objective_over_targets_combines_their_predicted_costs(
    reduce: Reduction, tmp_path: Path
) -> None:
    from own_parts import FormulaCost, Slower

    both = Objective("latency_ms", "minimize", None, None, (TARGET, OTHER), reduce)
    given = {"objectives": [ACCURACY, both, LATENCY], "study": tmp_path / "study.db"}
    costs = {LATENCY.label: FormulaCost(), f"latency_ms@{OTHER}": Slower(3)}
    result = searched(8, costs=costs, **given)
    for trial in result.trials:
        one, other = (trial.estimates[f"latency_ms@{target}"].mean for target in (TARGET, OTHER))
        assert other == 3 * one == 3 * trial.values[LATENCY.label]
        assert trial.values[both.label] == (other if reduce == "worst" else one + other)
    again = searched(8, costs=costs, **given)
    assert again.trials == result.trials, "what is on disk says the same"


def test_limit_on_the_worst_target_applies_to_every_target() -> None:
    from own_parts import FormulaCost, Slower

    both = Objective("latency_ms", "minimize", None, 6.0, (TARGET, OTHER), "worst")
    costs = {LATENCY.label: FormulaCost(), f"latency_ms@{OTHER}": Slower(2)}
    result = searched(30, objectives=[ACCURACY, both], costs=costs)
    kept = [
        all(trial.estimates[f"latency_ms@{t}"].interval90[1] <= 6 for t in (TARGET, OTHER))
        for trial in result.trials
    ]
    assert [trial.feasible for trial in result.trials] == kept
    assert {True, False} == set(kept)


def test_search_names_a_target_without_a_cost_source() -> None:
    from own_parts import FormulaCost

    both = Objective("latency_ms", "minimize", None, None, (TARGET, OTHER), "worst")
    with pytest.raises(ConfigError, match=f"pass costs.'latency_ms@{OTHER}'."):
        searched(4, objectives=[ACCURACY, both], costs={LATENCY.label: FormulaCost()})


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["guided", "nsga2"])
def test_product_space_is_searched_jointly_and_resumed(sampler: str, tmp_path: Path) -> None:
    from own_parts import Dials, EvenDials

    class WithRecipe(EvenDials):
        def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
            found = super().evaluate(candidate, fidelity)
            bonus = float(candidate["recipe"].as_dict()["learning_rate"])
            return replace(found, values={"accuracy": found.values["accuracy"] + bonus})

    space = ProductSpace(Dials(3), {"recipe": TrainingSpace({"learning_rate": (0.1, 0.5, 0.9)})})
    evaluator, path = WithRecipe(), tmp_path / "study.db"

    def run(trials: int) -> SearchResult:
        first = [space.smallest(), space.largest()]
        options = SearchOptions(trials, sampler, first=first)
        storage = StudyStorage(path)
        return run_search(space, [ACCURACY, PARAMS], evaluator, options, storage=storage)

    run(12)
    result = run(20)
    assert evaluator.asked == len(set(ids(result))) == 20
    assert [space.point(t.candidate) for t in result.trials[:2]] == [
        space.smallest(),
        space.largest(),
    ]
    assert len({t.candidate.network for t in result.trials}) < 20
    assert run(20).trials == result.trials, "what is on disk says the same"
    every = run(1000)
    assert len(every.trials) == space.size() == 3 * Dials(3).size()
    assert {t.candidate["recipe"].as_dict()["learning_rate"] for t in every.front} == {0.9}


def test_on_trial_receives_each_finished_trial() -> None:
    told: list[tuple[Scored, int]] = []
    result = searched(9, on_trial=lambda trial, complete: told.append((trial, complete)))
    assert [trial for trial, _ in told] == list(result.trials)
    assert [complete for _, complete in told] == list(range(1, 10))


def test_stored_scores_are_reused() -> None:
    from own_parts import EvenDials

    scores, evaluator = ScoreStore(), EvenDials()
    first = searched(20, scores=scores, evaluator=evaluator)
    again = searched(20, scores=scores, evaluator=evaluator)
    assert found(again) == found(first)
    assert (again.evaluations_made, evaluator.asked, len(scores)) == (0, 20, 20)


def test_search_fills_an_empty_score_store(tmp_path: Path) -> None:
    searched(5, scores=ScoreStore(tmp_path / "scores.jsonl"))
    assert len(ScoreStore(tmp_path / "scores.jsonl")) == 5


class TestLimits:
    def test_violation_is_stored_as_an_optuna_constraint(self, tmp_path: Path) -> None:
        limited = [Objective("accuracy", "maximize", limit=0.1), PARAMS]
        result = searched(20, objectives=limited, study=tmp_path / "study.db")
        trials = [t for t in plain(tmp_path / "study.db") if t.state is TrialState.COMPLETE]
        for trial, scored in zip(trials, result.trials, strict=True):
            missed = 0.1 - scored.values["accuracy"]
            assert trial.constraints == {"accuracy": pytest.approx(missed)}
            assert scored.feasible == (missed <= 0)
        assert len(result.feasible) < len(result.trials)

    def test_error_names_the_nearest_value_if_no_candidate_keeps_a_limit(
        self, tmp_path: Path
    ) -> None:
        limited = [Objective("accuracy", "maximize", limit=4), PARAMS]
        with pytest.raises(InfeasibleError) as caught:
            searched(729, objectives=limited, dials=2, study=tmp_path / "study.db")
        assert str(caught.value) == (
            "none of 5 candidates meets the limits: accuracy at least 4 (nearest found: 0.2). "
            "Relax the limit of the objective, or allow smaller networks in [space]"
        )
        assert sum(t.state is TrialState.COMPLETE for t in plain(tmp_path / "study.db")) == 5

    def test_error_names_the_nearest_value_for_each_limit(self) -> None:
        limited = [Objective("accuracy", "maximize", limit=0.9),
                   Objective("params", "minimize", limit=1)]  # fmt: skip
        with pytest.raises(InfeasibleError, match=r"accuracy at least 0\.9 .*; params at most 1 "):
            searched(60, objectives=limited)


class TestRefusals:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"sampler": "nsga9"}, "unknown sampler 'nsga9'; did you mean 'nsga"),
            ({"sampler": "own_parts:nobody"}, "'own_parts' has no 'nobody'"),
            ({"sampler_options": {"colour": 1}}, r"\[search.options\] has no key 'colour'"),
            (
                {"objectives": [ACCURACY, LATENCY]},
                "no cost source for latency_ms@cpu.*; pass costs",
            ),
            ({"trials": 0}, "trials is 0, batch 4 and retries 1; expected at least 1, 1 and 0"),
            ({"batch": 0}, "trials is 20, batch 0 and retries 1; expected at least 1, 1 and 0"),
            ({"retries": -1}, "trials is 20, batch 4 and retries -1; expected at least 1, 1 and 0"),
        ],
    )
    def test_search_refuses_invalid_arguments(self, given: dict[str, object], message: str) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            searched(**given)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


class TestFailures:
    """Evaluators that fail, most of them for about a third of the networks."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("way", "kind", "reason"),
        [
            ("raises", "raised", "ZeroDivisionError: division by zero"),
            ("nan", "bad result", "the evaluator returned accuracy nan; expected a finite number"),
            (
                "infinite",
                "bad result",
                "the evaluator returned accuracy inf; expected a finite number",
            ),
            (
                "text",
                "bad result",
                "the evaluator returned accuracy 'good'; expected a finite number",
            ),
            (
                "another metric",
                "bad result",
                "the evaluator returned no accuracy, which is an objective; it returned taste",
            ),
            (
                "no values",
                "bad result",
                "the evaluator returned no accuracy, which is an objective; it returned nothing",
            ),
            ("a number", "bad result", "the evaluator returned float; expected an Evaluation"),
            ("nothing", "bad result", "the evaluator returned NoneType; expected an Evaluation"),
        ],
    )
    def test_failed_trial_records_its_reason_and_the_search_continues(
        self, way: str, kind: str, reason: str, tmp_path: Path
    ) -> None:
        from own_parts import Moody, total

        told: list[FailedTrial] = []
        evaluator = Moody(way=way)
        scores = ScoreStore(tmp_path / "scores.jsonl")
        path = tmp_path / "study.db"
        given = {"study": path, "evaluator": evaluator, "scores": scores}
        result = searched(30, on_failure=told.append, **given)
        assert len(result.trials) == len(scores) == 30
        assert all(total(trial.candidate.network) not in (3, 4) for trial in result.trials)
        failed = [t for t in plain(path) if t.state is TrialState.FAIL]
        assert len(failed) >= 3
        for trial in failed:
            assert trial.user_attrs["failure"] == {"kind": kind, "reason": reason, "attempts": 2}
        assert [f.number for f in told] == [t.number for t in failed]
        assert list(result.failed) == told
        names = [f.candidate.id for f in told]
        assert len(set(names)) == len(names), "none is proposed again"
        assert {evaluator.tried[name] for name in names} == {2}

    @pytest.mark.parametrize(("times", "retries"), [(1, 1), (2, 2), (2, 5)])
    def test_retry_that_succeeds_gives_an_ordinary_trial(self, times: int, retries: int) -> None:
        from own_parts import Moody

        evaluator = Moody(times=times)
        result = searched(30, evaluator=evaluator, retries=retries)
        assert result.failed == ()
        assert found(result) == found(searched(30))
        assert max(evaluator.tried.values()) == times + 1

    def test_candidate_is_tried_once_without_retries(self) -> None:
        from own_parts import Moody

        evaluator = Moody()
        result = searched(30, evaluator=evaluator, retries=0)
        assert result.failed
        assert set(evaluator.tried.values()) == {1}
        assert {f.failure.attempts for f in result.failed} == {1}

    @pytest.mark.slow
    @pytest.mark.parametrize("sampler", ["random", "nsga2", "tpe"])
    def test_later_search_does_not_propose_a_failed_candidate(
        self, sampler: str, tmp_path: Path
    ) -> None:
        from own_parts import EvenDials, Moody

        path = tmp_path / "study.db"
        first = searched(20, sampler, study=path, evaluator=Moody())
        again = searched(60, sampler, study=path, evaluator=EvenDials())
        assert first.failed == again.failed != ()
        assert not {f.candidate.id for f in first.failed} & set(ids(again))

    def test_search_ends_soon_if_every_candidate_fails(self, tmp_path: Path) -> None:
        from own_parts import Diverging

        evaluator = Diverging()
        with pytest.raises(WorkerError) as caught:
            searched(1000, evaluator=evaluator, study=tmp_path / "study.db")
        assert str(caught.value).startswith(
            "the last 10 candidates have all failed, 10 of them with DivergedError: the training "
            "loss is not a number at step 7 "
        )
        assert "then run `hwnas resume`" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(plain(tmp_path / "study.db")) <= 12

    def test_later_search_retries_candidates_after_a_total_failure(self, tmp_path: Path) -> None:
        """The failed candidates are evaluated again, the given first ones included."""
        from own_parts import Dials, Diverging

        ends = {"first": [Dials().smallest(), Dials().largest()], "study": tmp_path / "study.db"}
        with pytest.raises(WorkerError):
            searched(20, evaluator=Diverging(), **ends)
        again = searched(20, **ends)
        assert {t.candidate.network for t in again.trials[:2]} == set(ends["first"])

    @pytest.mark.slow
    def test_study_can_be_resumed_after_an_evaluator_failed_later(self, tmp_path: Path) -> None:
        from own_parts import Diverging

        first = searched(6, study=tmp_path / "study.db")
        with pytest.raises(WorkerError, match="the last 20 candidates have all failed"):
            searched(12, study=tmp_path / "study.db", evaluator=Diverging())
        again = searched(60, study=tmp_path / "study.db")
        assert found(again)[:6] == found(first)
        assert len(again.trials) == 60

    def test_search_ends_if_nearly_every_candidate_fails(self) -> None:
        from own_parts import Moody

        rare = Moody(steps=tuple(range(2, 40)))
        with pytest.raises(WorkerError, match=r"\d+ (of \d+ )?candidates have"):
            searched(400, evaluator=rare, dials=10)

    def test_error_says_that_every_network_of_the_space_failed(self) -> None:
        from own_parts import Diverging

        with pytest.raises(WorkerError, match="all 5 networks of the space have failed: Diverged"):
            searched(10, dials=2, evaluator=Diverging())

    def test_error_names_an_objective_without_a_score(self) -> None:
        with pytest.raises(
            WorkerError, match="returned no mood, which is an objective; it returned acc"
        ):
            searched(objectives=[Objective("mood", "maximize")])


class TestBatches:
    def test_whole_batch_is_evaluated_together(self, tmp_path: Path) -> None:
        sizes = batches(study=tmp_path / "study.db", trials=10, batch=4)
        assert sizes == [4, 4, 2]

    def test_interrupted_batch_is_completed_before_the_next(self, tmp_path: Path) -> None:
        path = tmp_path / "study.db"

        def stop(trial: Scored, complete: int) -> None:
            if complete == 6:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            searched(12, batch=4, study=path, on_trial=stop)
        assert batches(study=path, trials=16, batch=4) == [2, 4, 4]

    def test_failed_candidate_keeps_its_place_in_the_batch(self, tmp_path: Path) -> None:
        from own_parts import Moody

        sizes = batches(trials=20, batch=4, evaluator=Moody(), retries=0)
        assert set(sizes[:-3]) == {4}


def batches(**given: object) -> list[int]:
    """Return the number of candidates of each call of the executor."""
    from own_parts import EvenDials

    sizes: list[int] = []

    class Counting(InProcess):
        def map(
            self, candidates: Sequence[Candidate], fidelity: Fidelity
        ) -> Iterator[tuple[int, Outcome]]:
            sizes.append(len(candidates))
            return super().map(candidates, fidelity)

    searched(**{**given, "evaluator": Counting(given.get("evaluator", EvenDials()))})
    return sizes


@pytest.mark.slow
@pytest.mark.ray
def test_ray_actors_find_the_same_trials_as_one_process(ray_session: None, tmp_path: Path) -> None:
    from own_parts import EvenDials, Fatal

    expected = searched(24, "nsga2")
    marker = tmp_path / "killed"
    actors = RayActors(Fatal(marker=str(marker)), 2)
    result = searched(24, "nsga2", evaluator=actors)
    actors.close()
    assert marker.exists()
    assert EvenDials().key == actors.evaluator.key
    assert found(result) == found(expected)


@pytest.mark.parametrize("patience", [1, 7, 20])
def test_search_ends_when_the_front_has_not_grown_for_so_many_trials(patience: int) -> None:
    whole = searched(120, batch=1)
    early = searched(120, batch=1, patience=patience)
    assert ids(early) == ids(whole)[: len(early.trials)]
    assert len(early.trials) < 120, "the front of so small a space stops growing"
    table = losses(early.objectives, [trial.values for trial in early.trials])
    grew = [i for i in range(len(table)) if non_dominated(table[: i + 1])[i]]
    assert len(table) == grew[-1] + 1 + patience
    assert all(b - a <= patience for a, b in itertools.pairwise(grew))


def test_resumed_search_with_more_patience_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    first = searched(120, batch=1, patience=5, study=path)
    again = searched(120, batch=1, patience=5, study=path)
    assert again.evaluations_made == 0
    longer = searched(120, batch=1, patience=12, study=path)
    assert len(longer.trials) >= len(first.trials) + 7
    assert ids(longer)[: len(first.trials)] == ids(first)


def test_patience_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="patience is 0; expected at least 1"):
        SearchOptions(patience=0)
