"""Reading the current front of a run."""

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
from hwnas.stages.results.fronts import read_front
from hwnas.stages.results.run_result import summarise
from hwnas.stages.search import found

TARGET = "cpu-onnxruntime-fp32-b1-t1"
PICKS = ("knee", "fastest", "most-accurate")


def test_read_front_of_a_finished_run_equals_its_summary(job: Job, goal: SearchGoal) -> None:
    expected = summarise(job, goal)
    assert read_front(job.folder.path) == expected
    assert read_front(job.folder.path, TARGET) == expected


def test_read_front_works_while_the_run_is_open(finished: Path) -> None:
    with RunFolder.open(finished):
        assert read_front(finished).trials == 12


def test_read_front_picks_by_search_values_before_there_are_finalists(
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


def test_read_front_selects_networks_by_pick_or_id(job: Job, goal: SearchGoal) -> None:
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


def test_read_front_gives_the_reason_if_there_is_no_front(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        read_front(tmp_path / "nowhere")
    with pytest.raises(RunError, match=rf"no front for 'tpu', only for: {TARGET}"):
        read_front(finished, "tpu")
    (finished / "study.db").unlink()
    with pytest.raises(RunError, match="has no finished trial yet; `hwnas status"):
        read_front(finished)
    assert not (finished / "study.db").exists(), "looking makes nothing"


def test_read_front_refuses_a_run_in_which_nothing_keeps_the_limits(finished: Path) -> None:
    """A search with such limits can be in this state while it runs."""
    limited(finished, 0.99999)
    with pytest.raises(InfeasibleError, match=r"none of 12 networks meets the limits \(accuracy 0"):
        read_front(finished)


def limited(run: Path, limit: float) -> None:
    """Give the accuracy a limit in the recipe of the run."""
    recipe, about = run / "recipe.toml", json.loads((run / "run.json").read_text())
    given = 'direction = "maximize"'
    recipe.write_text(recipe.read_text().replace(given, f"{given}\nlimit = {limit}"))
    changed = {**about, "recipe": read_recipe(recipe)[0].hash}
    (run / "run.json").write_text(json.dumps(changed))
