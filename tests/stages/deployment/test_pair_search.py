"""Cascades among all networks that a search scored: with a supernet, and trained alone."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwnas.errors import ConfigError
from hwnas.experiment import run as run_recipe
from hwnas.run_folder import RunFolder
from hwnas.stages import Job, SearchGoal
from hwnas.stages.deployment.cascade import make_cascade
from hwnas.stages.deployment.cascade_result import CascadeSettings, Cascading
from hwnas.stages.deployment.scored_networks import scored_outcomes, spread_trials
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.search import found

Command = Callable[..., Any]


def check(result: Cascading, job: Job) -> None:
    """Check that the networks of the chosen pairs were made and compared with the finalists."""
    search = result.search
    assert search is not None
    finalists = set(read_bundles(job.folder.path / "bundles"))
    chosen = {name for pair in search.pairs for name in (pair.small, pair.big)}
    assert chosen - finalists == set(search.made)
    # Timings may leave no pair on the front; of two networks, one at most is the only finalist.
    assert search.made or not search.pairs
    assert result.costs.networks.keys() == finalists | set(search.made)
    assert {frozenset((p.small, p.big)) for p in result.delivered} == {
        frozenset((p.small, p.big)) for p in search.pairs
    }
    assert result.energy == "unknown" if result.energy_unknown else result.energy != "unknown"
    best, alone = result.choice.cost, result.of_finalists
    assert best is not None
    assert alone is not None
    assert alone.cost is None or best <= alone.cost
    again = read_bundles(job.folder.path / "bundles")
    assert set(again) == finalists, "the run keeps its finalists"


@pytest.mark.slow
def test_cascade_pairs_all_networks_that_a_supernet_search_scored(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    job = Job.of(RunFolder.open(run_recipe(tiny_recipe, tmp_path / "run", ["deploy.top=1"]).run))
    goal = SearchGoal(job.recipe.objective)
    trials = found(job.folder.path, goal).trials
    settings = CascadeSettings(0.2, 0.0, pairs=20)
    result = make_cascade(job, goal, settings, tmp_path / "two")
    check(result, job)
    assert result.search is not None
    assert result.search.networks == result.search.scored == len({t.candidate.id for t in trials})


@pytest.mark.slow
def test_cascade_pairs_networks_that_were_trained_alone(
    hwnas: Command, tiny_recipe: Path, tmp_path: Path
) -> None:
    overrides = ['search.evaluator="train"', "search.trials=6", "deploy.top=1"]
    folder = run_recipe(tiny_recipe, tmp_path / "run", overrides).run
    target = ("--target-accuracy", "0.05", "--margin", "0", "--out", tmp_path / "two")
    hwnas("cascade", folder, *target, "--pairs", "0").refused("--pairs")
    answer = hwnas("cascade", folder, *target, "--pairs", "2", "--json")
    assert answer.status == 0, answer.err
    told = json.loads(answer.out)
    assert told["search"]["scored"] == 6
    assert told["search"]["made"] or not told["search"]["pairs"]
    assert told["energy"] in ("measured", "predicted", "unknown")
    # What a search trained is what a cascade is estimated from and made of.
    opened = RunFolder.open(folder)
    job = Job.of(opened)
    trials = found(folder, SearchGoal(job.recipe.objective)).trials
    outcomes = scored_outcomes(job, trials, {t.candidate.id: 1.0 for t in trials}, None)
    for trial in trials:
        assert outcomes[trial.candidate.id].accuracy == pytest.approx(trial.values["accuracy"])
    (folder / "evaluator" / f"{trials[0].candidate.id}.safetensors").unlink()
    outcomes = scored_outcomes(job, trials, {t.candidate.id: 1.0 for t in trials}, None)
    assert trials[0].candidate.id not in outcomes
    shown = hwnas("cascade", folder, *target, "--pairs", "1")
    assert shown.status == 0, shown.err
    assert "5 of 6 networks of the search are compared" in shown.err
    assert "10 pairs of 5 of 6 scored networks" in shown.out
    assert "energy: " in shown.out


def test_spread_trials_keeps_the_front(job: Job, goal: SearchGoal) -> None:
    trials = found(job.folder.path, goal).trials
    costs = {t.candidate.id: float(number + 1) for number, t in enumerate(trials)}
    accuracy = job.run_inputs.task.metrics[0]
    assert spread_trials(trials, accuracy, costs, 100) == list(trials)
    best = max(trials, key=lambda t: t.values["accuracy"])
    some = spread_trials(trials, accuracy, costs, 2)
    assert len(some) == 2
    assert trials[0] in some, "the cheapest"
    assert max(t.values["accuracy"] for t in some) == best.values["accuracy"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target_accuracy": 90}, "target accuracy is 90"),
        ({"margin": -1}, "margin is -1"),
        ({"saved": "time"}, "saved is 'time'"),
        ({"among": "all"}, "among is 'all'"),
        ({"pairs": 0}, "pairs is 0; expected at least 1"),
        ({"most_scored": 1}, "most_scored is 1; expected at least 2"),
    ],
)
def test_cascade_settings_refuse_values_out_of_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CascadeSettings(0.9), **values)
