from dataclasses import replace

import pytest

from hwnas.errors import ConfigError
from hwnas.identity import Identity
from hwnas.search import Objective
from hwnas.search.objectives.objective import Reduction
from hwnas.stages import Job, RunInputs, SearchGoal
from hwnas.stages.job import RunStage

TARGET = "cpu-onnxruntime-fp32-b1-t1"
OTHER = "cpu-onnxruntime-fp32-b8-t1"


def test_a_goal_for_another_target_differs_only_in_that(job: Job, goal: SearchGoal) -> None:
    other = SearchGoal.specialised(job.recipe, OTHER)
    assert goal.targets == [TARGET]
    assert other.targets == [OTHER]
    assert [o.metric for o in other.objectives] == [o.metric for o in goal.objectives]
    assert (goal.stage("search"), other.stage("search")) == ("search", f"search@{OTHER}")
    assert (goal.study_name, other.study_name) == ("search", f"search@{OTHER}")


@pytest.mark.parametrize(("reduce", "limit"), [("worst", 5.0), ("sum", None)])
def test_a_goal_over_several_targets_becomes_one_of_another(
    job: Job, reduce: Reduction, limit: float | None
) -> None:
    both = Objective("latency_ms", "minimize", None, 5.0, (TARGET, OTHER), reduce)
    recipe = replace(job.recipe, objective=(job.recipe.objective[0], both))
    assert SearchGoal(recipe.objective).targets == [TARGET, OTHER]
    third = "cpu-openvino-fp32-b1-t1"
    expected = Objective("latency_ms", "minimize", third, limit)
    assert SearchGoal.specialised(recipe, third).objectives[1] == expected


def test_a_goal_needs_a_known_target_and_a_latency(job: Job) -> None:
    with pytest.raises(ConfigError, match="target 'tpu'"):
        SearchGoal.specialised(job.recipe, "tpu")
    accuracy = replace(job.recipe, objective=job.recipe.objective[:1])
    with pytest.raises(ConfigError, match="no objective latency_ms"):
        SearchGoal.specialised(accuracy, OTHER)


def test_nothing_is_searched_for_that_would_not_ship_as_it_was_measured(job: Job) -> None:
    with pytest.raises(ConfigError, match=r"bundles hold fp32 networks.*openvino-fp32-b1-t1"):
        SearchGoal.specialised(job.recipe, "cpu-openvino-bf16-b1-t1")


def test_what_training_depends_on_and_what_it_does_not(job: Job) -> None:
    def training_with(**changes: object) -> Identity:
        recipe = replace(job.recipe, **changes)  # type: ignore[arg-type]
        return Job(replace(job.run_inputs, recipe=recipe), job.folder, job.reporter).training

    train = job.recipe.train
    same = training_with(search=replace(job.recipe.search, trials=99), name="other")
    assert same == job.training
    assert training_with(train=replace(train, workers=2, checkpoint_seconds=1)) == job.training
    assert training_with(seed=1) != job.training
    assert training_with(train=replace(train, epochs=9)) != job.training


def test_a_stage_whose_results_are_gone_is_done_again(job: Job) -> None:
    done: list[str] = []

    def stage(inputs: int, made: bool) -> RunStage:
        identity = Identity({"extra.inputs": inputs})
        return RunStage("extra", identity, lambda advance: done.append("work"), lambda: made)

    for made in (True, True, False):
        job.perform(stage(1, made))
    assert done == ["work", "work"]
    job.perform(stage(2, True))
    assert len(done) == 3


def test_preparing_writes_nothing_for_a_small_set(job: Job) -> None:
    assert not (job.folder.path / "cache").exists()
    assert isinstance(job.run_inputs, RunInputs)
    assert job.needs_supernet
