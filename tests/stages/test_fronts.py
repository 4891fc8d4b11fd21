"""The front of a run as it is now."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hwnas.errors import ConfigError, InfeasibleError, RunError
from hwnas.recipe import read_recipe
from hwnas.run_folder import RunFolder
from hwnas.search.objectives.front import non_dominated
from hwnas.search.objectives.objective import losses
from hwnas.stages import Job, SearchGoal
from hwnas.stages.fronts import read_front
from hwnas.stages.run_result import summarise
from hwnas.stages.search import found

TARGET = "cpu-onnxruntime-fp32-b1-t1"
PICKS = ("knee", "fastest", "most-accurate")


def test_of_a_finished_run_it_is_its_summary(job: Job, goal: SearchGoal) -> None:
    expected = summarise(job, goal)
    assert read_front(job.folder.path) == expected
    assert read_front(job.folder.path, TARGET) == expected


def test_a_run_that_is_at_work_is_looked_at_without_disturbing_it(finished: Path) -> None:
    with RunFolder.open(finished):
        assert read_front(finished).trials == 12


def test_before_there_are_finalists_the_marks_go_by_what_the_search_knows(
    job: Job, goal: SearchGoal
) -> None:
    shutil.rmtree(job.folder.path / "bundles")
    summary, result = read_front(job.folder.path), found(job.folder.path, goal)
    assert [row.id for row in summary.front] == [t.candidate.id for t in result.front]
    table = losses(goal.objectives, [row.values for row in summary.front])
    assert non_dominated(table).all()
    marked = {name: row for row in summary.front for name in row.picks}
    assert set(marked) == set(PICKS)
    values = [row.values for row in summary.front]
    assert marked["most-accurate"].values["accuracy"] == max(v["accuracy"] for v in values)
    latency = f"latency_ms@{TARGET}"
    assert marked["fastest"].values[latency] == min(v[latency] for v in values)
    assert summary.finalists == ()


def test_networks_are_wanted_by_name_or_by_id(job: Job, goal: SearchGoal) -> None:
    run, trials = job.folder.path, found(job.folder.path, goal).trials
    whole = read_front(run)
    listed = {row.id for row in whole.front}
    dominated = next(t.candidate.id for t in trials if t.candidate.id not in listed)
    rows = read_front(run, wanted=["knee", dominated, "knee"]).front
    assert len(rows) == 2
    assert "knee" in rows[0].picks
    assert (rows[1].id, rows[1].picks) == (dominated, ())
    message = r"--pick 'fastst' is not a network of .*did you mean 'fastest'"
    with pytest.raises(ConfigError, match=message):
        read_front(run, wanted=["fastst"])


def test_what_has_no_front_says_why(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        read_front(tmp_path / "nowhere")
    with pytest.raises(RunError, match=rf"no front for 'tpu', only for: {TARGET}"):
        read_front(finished, "tpu")
    (finished / "study.db").unlink()
    with pytest.raises(RunError, match="has no finished trial yet; `hwnas status"):
        read_front(finished)
    assert not (finished / "study.db").exists(), "looking makes nothing"


def test_a_run_of_which_nothing_keeps_the_limits_yet(finished: Path) -> None:
    """As it is while such a search is at work."""
    limited(finished, 0.99999)
    with pytest.raises(InfeasibleError, match=r"none of 12 networks keeps the limits \(accuracy 0"):
        read_front(finished)


def limited(run: Path, limit: float) -> None:
    """As if the run's recipe had given its accuracy a limit."""
    recipe, about = run / "recipe.toml", json.loads((run / "run.json").read_text())
    given = 'direction = "maximize"'
    recipe.write_text(recipe.read_text().replace(given, f"{given}\nlimit = {limit}"))
    changed = {**about, "recipe": read_recipe(recipe)[0].hash}
    (run / "run.json").write_text(json.dumps(changed))
