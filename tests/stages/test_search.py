from pathlib import Path

import pytest

from hwnas.errors import RunError
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
