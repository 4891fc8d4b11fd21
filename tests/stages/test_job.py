from dataclasses import replace

import pytest

from hwnas.errors import ConfigError
from hwnas.home import home
from hwnas.identity import Identity
from hwnas.search import Objective
from hwnas.search.objectives.objective import Reduction
from hwnas.stages import Job, RunInputs, SearchGoal
from hwnas.stages.job import RunStage

TARGET = "cpu-onnxruntime-fp32-b1-t1"
OTHER = "cpu-onnxruntime-fp32-b8-t1"
INT8 = "cpu-onnxruntime-int8-b1-t1"


def test_specialised_goal_differs_only_in_its_target(job: Job, goal: SearchGoal) -> None:
    other = SearchGoal.specialised(job.recipe, OTHER)
    assert goal.targets == [TARGET]
    assert other.targets == [OTHER]
    assert [o.metric for o in other.objectives] == [o.metric for o in goal.objectives]
    assert (goal.stage("search"), other.stage("search")) == ("search", f"search@{OTHER}")
    assert (goal.study_name, other.study_name) == ("search", f"search@{OTHER}")


@pytest.mark.parametrize(("reduce", "limit"), [("worst", 5.0), ("min", 5.0), ("sum", None)])
def test_specialised_goal_replaces_several_targets_by_one(
    job: Job, reduce: Reduction, limit: float | None
) -> None:
    both = Objective("latency_ms", "minimize", None, 5.0, (TARGET, OTHER), reduce)
    recipe = replace(job.recipe, objective=(job.recipe.objective[0], both))
    assert SearchGoal(recipe.objective).targets == [TARGET, OTHER]
    third = "cpu-openvino-fp32-b1-t1"
    expected = Objective("latency_ms", "minimize", third, limit)
    assert SearchGoal.specialised(recipe, third).objectives[1] == expected


def test_specialised_goal_needs_a_known_target_and_a_cost_on_it(job: Job) -> None:
    with pytest.raises(ConfigError, match="target 'tpu'"):
        SearchGoal.specialised(job.recipe, "tpu")
    accuracy = replace(job.recipe, objective=job.recipe.objective[:1])
    with pytest.raises(ConfigError, match="no objective of the recipe has a target"):
        SearchGoal.specialised(accuracy, OTHER)


def test_specialised_goal_has_the_number_format_of_its_target(job: Job, goal: SearchGoal) -> None:
    assert goal.number_format == "fp32"
    rounded = SearchGoal.specialised(job.recipe, "cpu-openvino-int8-b1-t1")
    assert rounded.number_format == "int8"
    tensors = job.run_inputs.space.supernet().shared.state_dict()
    weights = {name: tensor.numpy() for name, tensor in tensors.items()}
    keys = [job.evaluator(weights, each).key for each in (goal, rounded)]
    assert keys[0] != keys[1]


def test_goal_refuses_targets_in_several_number_formats(job: Job) -> None:
    both = Objective("latency_ms", "minimize", None, None, (TARGET, INT8), "worst")
    with pytest.raises(ConfigError, match=r"int8, fp32, but each network ships in one"):
        SearchGoal((job.recipe.objective[0], both)).check()


def test_goal_that_chooses_among_targets_searches_their_formats(job: Job) -> None:
    least = Objective("latency_ms", "minimize", None, None, (TARGET, INT8, OTHER), "min")
    goal = SearchGoal((job.recipe.objective[0], least))
    goal.check()
    space = goal.space(job.run_inputs.searched)
    assert space.size() == 2 * job.run_inputs.searched.size()
    small, large = (space.candidate(each) for each in (space.smallest(), space.largest()))
    assert [goal.format_of(each) for each in (small, large)] == ["int8", "fp32"]
    assert [goal.targets_of(each) for each in (small, large)] == [[INT8], [TARGET, OTHER]]
    in_one = replace(least, targets=(TARGET, OTHER))
    plain = SearchGoal((job.recipe.objective[0], in_one))
    assert plain.space(job.run_inputs.searched) is job.run_inputs.searched
    energy = Objective("energy_mj", "minimize", TARGET)
    with pytest.raises(ConfigError, match="has to be the only one with a target"):
        SearchGoal((least, energy)).check()


def test_job_training_identity_depends_only_on_training_settings(job: Job) -> None:
    def training_with(**changes: object) -> Identity:
        recipe = replace(job.recipe, **changes)  # type: ignore[arg-type]
        return Job(replace(job.run_inputs, recipe=recipe), job.folder, job.reporter).training

    train = job.recipe.train
    same = training_with(search=replace(job.recipe.search, trials=99), name="other")
    assert same == job.training
    assert training_with(train=replace(train, workers=2, checkpoint_seconds=1)) == job.training
    assert training_with(seed=1) != job.training
    assert training_with(train=replace(train, epochs=9)) != job.training


def test_job_repeats_a_stage_if_results_are_lost_or_inputs_change(job: Job) -> None:
    done: list[str] = []

    def stage(inputs: int, made: bool) -> RunStage:
        identity = Identity({"extra.inputs": inputs})
        return RunStage("extra", identity, lambda advance: done.append("work"), lambda: made)

    for made in (True, True, False):
        job.perform(stage(1, made))
    assert done == ["work", "work"]
    job.perform(stage(2, True))
    assert len(done) == 3


def test_job_preparation_writes_no_cache_for_small_data(job: Job) -> None:
    assert not (home() / "images").exists()
    assert isinstance(job.run_inputs, RunInputs)
    assert job.needs_supernet
