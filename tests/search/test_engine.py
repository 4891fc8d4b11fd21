from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from hwnas.errors import ConfigError, DivergedError, InfeasibleError, RunError
from hwnas.search import (
    Evaluation,
    Fidelity,
    Objective,
    RayActors,
    ScoreStore,
    SearchResult,
    run_search,
)
from hwnas.search.engine import Scored
from hwnas.search.front import non_dominated
from hwnas.search.objective import Reduction, losses
from hwnas.search.samplers import SAMPLERS
from hwnas.search_spaces import Candidate, ProductSpace, RecipeSpace

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
    from own_parts import Dials, EvenDials

    given = {"objectives": [ACCURACY, PARAMS], "evaluator": EvenDials(), **given}
    return run_search(Dials(dials), trials=trials, sampler=sampler, **given)


def plain(path: Path) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="search", storage=f"sqlite:///{path}").trials


def ids(result: SearchResult) -> list[str]:
    return [trial.candidate.id for trial in result.trials]


def found(result: SearchResult) -> list[tuple[str, dict[str, float]]]:
    return [(trial.candidate.id, dict(trial.values)) for trial in result.trials]


@pytest.mark.parametrize("sampler", [*sorted(SAMPLERS), "own_parts:stubborn"])
class TestEverySampler:
    """What holds for each sampler by name, and for a user's own."""

    def run(self, sampler: str, trials: int = 24, **given: object) -> SearchResult:
        options = {"n_startup_trials": 10} if sampler in ("gp", "tpe") else {}
        trials = min(trials, 14) if sampler == "gp" else trials
        return searched(trials, sampler, sampler_options=options, **given)

    def test_no_network_is_evaluated_twice(self, sampler: str, tmp_path: Path) -> None:
        result = self.run(sampler, study=tmp_path / "study.db")
        assert len(set(ids(result))) == len(result.trials) == result.evaluations_made
        trials = plain(tmp_path / "study.db")
        complete = [t for t in trials if t.state is TrialState.COMPLETE]
        assert [t.user_attrs["candidate"] for t in complete] == ids(result)
        for trial in trials:
            if trial.state is not TrialState.COMPLETE:
                assert trial.state is TrialState.PRUNED
                twin = trials[trial.user_attrs["twin"]]
                assert twin.number < trial.number
                assert twin.state is TrialState.COMPLETE
                assert twin.user_attrs["candidate"] == trial.user_attrs["candidate"]

    def test_the_same_seed_finds_the_same(self, sampler: str) -> None:
        assert found(self.run(sampler, seed=3)) == found(self.run(sampler, seed=3))

    def test_goes_on_where_it_stopped(self, sampler: str, tmp_path: Path) -> None:
        from own_parts import EvenDials

        path, evaluator = tmp_path / "study.db", EvenDials()
        first = self.run(sampler, 10, study=path, evaluator=evaluator)
        again = self.run(sampler, 14, study=path, evaluator=evaluator)
        assert found(again)[:10] == found(first)
        assert len(set(ids(again))) == 14
        assert (again.evaluations_made, evaluator.asked) == (4, 14)

    def test_a_limit_is_kept_by_the_front(self, sampler: str) -> None:
        limit = 9 if sampler == "proxy-order" else 5  # that one goes from the largest down
        limited = Objective("params", "minimize", limit=limit)
        result = self.run(sampler, objectives=[ACCURACY, limited])
        assert all(trial.values["params"] <= limit for trial in result.front)
        assert any(trial.values["params"] > limit for trial in result.trials)


@pytest.mark.parametrize("sampler", ["guided", "nsga2", "nsga3", "tpe"])
def test_a_sampler_that_learns_beats_random_search(sampler: str) -> None:
    def best(name: str) -> float:
        results = [searched(80, name, dials=10, seed=s, objectives=[ACCURACY]) for s in range(3)]
        return sum(r.front[0].values["accuracy"] for r in results)

    assert best(sampler) > best("random")


def test_a_planned_search_that_goes_on_is_the_search_that_was_not_interrupted(
    tmp_path: Path,
) -> None:
    whole = searched(24, "guided", seed=5)
    searched(12, "guided", seed=5, study=tmp_path / "study.db")
    assert found(searched(24, "guided", seed=5, study=tmp_path / "study.db")) == found(whole)


def test_different_seeds_find_different_networks() -> None:
    assert ids(searched(seed=0)) != ids(searched(seed=1))


def test_a_space_that_is_used_up_ends_the_search() -> None:
    from own_parts import Dials

    result = searched(1000, dials=2)
    assert Dials(2).size() == 5
    assert len(set(ids(result))) == len(result.trials) == 5


def test_the_front_is_what_no_trial_dominates() -> None:
    result = searched(40, objectives=[ACCURACY, PARAMS])
    table = losses(result.objectives, [trial.values for trial in result.trials])
    expected = {t.number for t, on in zip(result.trials, non_dominated(table), strict=True) if on}
    assert {trial.number for trial in result.front} == expected
    accuracies = [trial.values["accuracy"] for trial in result.front]
    assert accuracies == sorted(accuracies, reverse=True)


def test_given_architectures_come_first_and_once() -> None:
    from own_parts import Dials

    smallest, largest = Dials().smallest(), Dials().largest()
    result = searched(6, first=[smallest, largest, smallest])
    assert [t.candidate.network for t in result.trials[:2]] == [smallest, largest]
    assert len(set(ids(result))) == 6


def test_a_batch_is_only_how_many_run_at_a_time() -> None:
    for batch in (1, 3, 50):
        assert len(searched(10, batch=batch).trials) == 10


def test_a_price_comes_with_its_estimate_and_counts() -> None:
    from own_parts import Priced, total

    result = searched(8, objectives=[ACCURACY, LATENCY], costs={TARGET: Priced()})
    for trial in result.trials:
        steps = total(trial.candidate.network)
        assert trial.values[LATENCY.label] == 1 + 0.5 * steps
        assert trial.counted["params"] == trial.values["params"] == steps
        assert trial.estimates[LATENCY.label].kind == "table"
        assert trial.standard_errors == {"accuracy": 0.01}


@pytest.mark.parametrize("reduce", ["worst", "sum"])
def test_several_targets_are_priced_each_and_make_one_objective(
    reduce: Reduction, tmp_path: Path
) -> None:
    from own_parts import Dials, EvenDials, Priced, Slower

    both = Objective("latency_ms", "minimize", None, None, (TARGET, OTHER), reduce)
    given = {"objectives": [ACCURACY, both, LATENCY], "study": tmp_path / "study.db"}
    result = searched(8, costs={TARGET: Priced(), OTHER: Slower(3)}, **given)
    for trial in result.trials:
        one, other = (trial.estimates[f"latency_ms@{target}"].mean for target in (TARGET, OTHER))
        assert other == 3 * one == 3 * trial.values[LATENCY.label]
        assert trial.values[both.label] == (other if reduce == "worst" else one + other)
    again = run_search(Dials(6), evaluator=EvenDials(), trials=8, sampler="random", **given)
    assert again.trials == result.trials, "what is on disk says the same"


def test_every_target_keeps_the_limit_of_the_worst() -> None:
    from own_parts import Priced, Slower

    both = Objective("latency_ms", "minimize", None, 6.0, (TARGET, OTHER), "worst")
    result = searched(30, objectives=[ACCURACY, both], costs={TARGET: Priced(), OTHER: Slower(2)})
    kept = [
        all(trial.estimates[f"latency_ms@{t}"].interval90[1] <= 6 for t in (TARGET, OTHER))
        for trial in result.trials
    ]
    assert [trial.feasible for trial in result.trials] == kept
    assert {True, False} == set(kept)


def test_a_target_that_nothing_prices_is_named() -> None:
    from own_parts import Priced

    both = Objective("latency_ms", "minimize", None, None, (TARGET, OTHER), "worst")
    with pytest.raises(ConfigError, match=f"pass costs.'{OTHER}'."):
        searched(4, objectives=[ACCURACY, both], costs={TARGET: Priced()})


@pytest.mark.parametrize("sampler", ["guided", "nsga2"])
def test_several_roles_are_searched_as_one_and_gone_on_with(sampler: str, tmp_path: Path) -> None:
    from own_parts import Dials, EvenDials

    class WithRecipe(EvenDials):
        def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
            found = super().evaluate(candidate, fidelity)
            bonus = float(candidate["recipe"].as_dict()["learning_rate"])
            return replace(found, values={"accuracy": found.values["accuracy"] + bonus})

    space = ProductSpace(Dials(3), {"recipe": RecipeSpace({"learning_rate": (0.1, 0.5, 0.9)})})
    evaluator, path = WithRecipe(), tmp_path / "study.db"

    def run(trials: int) -> SearchResult:
        first = [space.smallest(), space.largest()]
        return run_search(
            space, [ACCURACY, PARAMS], evaluator, {}, trials, sampler, study=path, first=first
        )

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


def test_each_finished_trial_is_told_of() -> None:
    told: list[tuple[Scored, int]] = []
    result = searched(9, on_trial=lambda trial, complete: told.append((trial, complete)))
    assert [trial for trial, _ in told] == list(result.trials)
    assert [complete for _, complete in told] == list(range(1, 10))


def test_scores_that_are_known_are_not_made_again() -> None:
    from own_parts import EvenDials

    scores, evaluator = ScoreStore(), EvenDials()
    first = searched(20, scores=scores, evaluator=evaluator)
    again = searched(20, scores=scores, evaluator=evaluator)
    assert found(again) == found(first)
    assert (again.evaluations_made, evaluator.asked, len(scores)) == (0, 20, 20)


def test_an_empty_store_that_is_given_is_the_one_that_is_filled(tmp_path: Path) -> None:
    searched(5, scores=ScoreStore(tmp_path / "scores.jsonl"))
    assert len(ScoreStore(tmp_path / "scores.jsonl")) == 5


class TestLimits:
    def test_optuna_sees_by_how_much_a_limit_is_missed(self, tmp_path: Path) -> None:
        limited = [Objective("accuracy", "maximize", limit=0.1), PARAMS]
        result = searched(20, objectives=limited, study=tmp_path / "study.db")
        trials = [t for t in plain(tmp_path / "study.db") if t.state is TrialState.COMPLETE]
        for trial, scored in zip(trials, result.trials, strict=True):
            missed = 0.1 - scored.values["accuracy"]
            assert trial.constraints == {"accuracy": pytest.approx(missed)}
            assert scored.feasible == (missed <= 0)
        assert len(result.feasible) < len(result.trials)

    def test_a_limit_that_nothing_keeps_names_the_nearest(self, tmp_path: Path) -> None:
        limited = [ACCURACY, Objective("params", "minimize", limit=-4)]
        with pytest.raises(InfeasibleError) as caught:
            searched(729, objectives=limited, dials=2, study=tmp_path / "study.db")
        assert str(caught.value) == (
            "none of 5 candidates keeps the limits: params at most -4 (nearest found: 0). "
            "Relax the limit of the objective, or allow smaller networks in [space]"
        )
        assert sum(t.state is TrialState.COMPLETE for t in plain(tmp_path / "study.db")) == 5

    def test_the_nearest_is_near_in_all_limits_together(self) -> None:
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
            ({"objectives": [ACCURACY, LATENCY]}, "nothing prices latency_ms@cpu.*; pass costs"),
            (
                {"objectives": [Objective("mood", "maximize")]},
                "has mood missing; expected a finite",
            ),
            ({"trials": 0}, "trials is 0 and batch 4; expected at least 1"),
            ({"batch": 0}, "trials is 20 and batch 0; expected at least 1"),
        ],
    )
    def test_what_cannot_work_is_refused(self, given: dict[str, object], message: str) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            searched(**given)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)

    def test_a_score_that_is_no_number_is_refused(self) -> None:
        from own_parts import Broken

        with pytest.raises(ConfigError, match=r"candidate [0-9a-f]{12} has accuracy nan; expected"):
            searched(evaluator=Broken())

    def test_other_objectives_need_another_study(self, tmp_path: Path) -> None:
        searched(3, study=tmp_path / "study.db")
        with pytest.raises(RunError, match="has other objectives"):
            searched(3, study=tmp_path / "study.db", objectives=[ACCURACY])

    def test_an_evaluator_that_fails_leaves_a_study_to_go_on_with(self, tmp_path: Path) -> None:
        from own_parts import Diverging

        first = searched(6, study=tmp_path / "study.db")
        with pytest.raises(DivergedError):
            searched(12, study=tmp_path / "study.db", evaluator=Diverging())
        again = searched(12, study=tmp_path / "study.db")
        assert found(again)[:6] == found(first)
        assert len(again.trials) == 12


@pytest.mark.ray
def test_ray_actors_give_what_this_process_gives(ray_session: None, tmp_path: Path) -> None:
    from own_parts import EvenDials, Fatal

    expected = searched(24, "nsga2")
    marker = tmp_path / "killed"
    actors = RayActors(Fatal(marker=str(marker)), 2)
    result = searched(24, "nsga2", evaluator=actors)
    actors.close()
    assert marker.exists()
    assert EvenDials().key == actors.evaluator.key
    assert found(result) == found(expected)
