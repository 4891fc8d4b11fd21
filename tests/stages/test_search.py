from pathlib import Path

import pytest

from hwnas.errors import RunError
from hwnas.search.objectives.objective import Objective
from hwnas.stages import Job, SearchGoal
from hwnas.stages.search import found


def test_what_was_found_is_read_from_the_study(job: Job, goal: SearchGoal) -> None:
    result = found(job.folder.path, goal)
    assert len(result.trials) == job.recipe.search.trials
    space = job.run_inputs.space
    ids = {trial.candidate.network for trial in result.trials}
    assert {space.smallest(), space.largest()} <= ids, "both ends are looked at first"
    for trial in result.trials:
        workload = space.workload(trial.candidate.network)
        assert trial.counted["macs"] == workload.macs
        assert trial.estimates[goal.objectives[1].label].kind == "predicted"


def test_a_study_of_other_objectives_is_refused(job: Job) -> None:
    with pytest.raises(RunError, match="has other objectives"):
        found(job.folder.path, SearchGoal((Objective("macs", "minimize"),)))


def test_a_goal_that_was_not_searched_has_no_trials(
    job: Job, goal: SearchGoal, tmp_path: Path
) -> None:
    assert found(tmp_path, goal).trials == ()
