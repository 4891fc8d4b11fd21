from pathlib import Path

import pytest

from hwnas import experiment
from hwnas.errors import RunError
from hwnas.progress import make_reporter
from hwnas.run_folder import RunFolder
from hwnas.search.objectives.objective import Objective
from hwnas.stages import Job, SearchGoal
from hwnas.stages.search import found


def test_found_reads_the_trials_of_the_study(job: Job, goal: SearchGoal) -> None:
    result = found(job.folder.path, goal)
    assert len(result.trials) == job.recipe.search.trials
    space = job.run_inputs.space
    ids = {trial.candidate.network for trial in result.trials}
    assert {space.smallest(), space.largest()} <= ids, "both ends are looked at first"
    for trial in result.trials:
        workload = space.workload(trial.candidate.network)
        assert trial.counted["macs"] == workload.macs
        assert trial.estimates[goal.objectives[1].label].kind == "predicted"


def test_found_refuses_a_study_with_other_objectives(job: Job) -> None:
    with pytest.raises(RunError, match="has other objectives"):
        found(job.folder.path, SearchGoal((Objective("macs", "minimize"),)))


def test_found_has_no_trials_before_the_search(job: Job, goal: SearchGoal, tmp_path: Path) -> None:
    assert found(tmp_path, goal).trials == ()


@pytest.mark.slow
def test_search_for_a_further_target_trains_no_network_that_was_spread_over_costs(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = ["evaluator=train", "sampler=stratified", "trials=4", "batch=4"]
    settings += ["fidelity.rungs=[0.3, 1.0]", "fidelity.keep=2"]
    overrides = [*(f"search.{each}" for each in settings), "train.epochs=1"]
    quiet = make_reporter(quiet=True)
    run = experiment.run(tiny_recipe, tmp_path / "run", overrides=overrides, reporter=quiet).run
    evaluated = (run / "scores.jsonl").read_text().splitlines()
    target = "cpu-onnxruntime-fp32-b8-t1"
    experiment.specialise(run, [target], quiet)
    recipe = RunFolder.open(run).recipe
    own, further = (
        {trial.candidate for trial in found(run, goal).trials}
        for goal in (SearchGoal(recipe.objective), SearchGoal.specialised(recipe, target))
    )
    assert len(own) == 2
    again = (run / "scores.jsonl").read_text().splitlines()
    assert len(further) == 2
    assert len(again) - len(evaluated) == len(further - own), "only other promotions are trained on"
