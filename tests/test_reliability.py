"""Failed candidates, rungs and shared studies on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

Command = Callable[..., object]

FRAGILE = '''
from dataclasses import replace

from hwnas.search import Evaluation, TrainEvaluator


class Fragile(TrainEvaluator):
    """Breaks for every network with kernels of five in its first stage."""

    def evaluate(self, candidate, fidelity):
        values = candidate.network.as_dict()
        if any(v == 5 for k, v in values.items() if k.endswith("kernel_size")):
            raise RuntimeError("kernels of five\\nare too much")
        return Evaluation({"accuracy": 0.5 + hash(candidate.id) % 7 / 100}, {"accuracy": 0.01}, 9,
                          "validation")


class Hopeless(TrainEvaluator):
    def evaluate(self, candidate, fidelity):
        raise RuntimeError("out of luck")
'''


@pytest.fixture
def fragile_recipe(quick_recipe: Path) -> Path:
    (quick_recipe.parent / "fragile.py").write_text(FRAGILE)
    return quick_recipe


def sets(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


@pytest.mark.slow
def test_failed_candidates_appear_in_status_log_and_report(
    hwnas: Command, fragile_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    given = sets("search.evaluator=fragile:Fragile", "search.trials=6", "deploy.finetune_epochs=0")
    answer = hwnas("search", fragile_recipe, "--run", run, *given)
    assert answer.status == 0, answer.err
    reason = "RuntimeError: kernels of five are too much"
    assert f" raised (tries: 2): {reason}" in answer.err
    text = hwnas("status", run).out
    assert "6 of 6 candidates evaluated" in text
    assert f": raised, {reason}" in text
    found = json.loads(hwnas("status", run, "--json").out)
    assert found["failed"]
    assert {f["reason"] for f in found["failed"]} == {reason}
    notes = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    traces = [note["trace"] for note in notes if "failure" in note]
    assert len(traces) == len(found["failed"])
    assert all("fragile.py" in trace for trace in traces)
    told = f"{len(traces)} candidates could not be evaluated, most often because of: {reason}"
    assert told in (run / "report.html").read_text()


def test_search_command_stops_if_every_candidate_fails(
    hwnas: Command, fragile_recipe: Path, tmp_path: Path
) -> None:
    given = sets("search.evaluator=fragile:Hopeless")
    answer = hwnas("search", fragile_recipe, "--run", tmp_path / "run", *given)
    answer.refused("the last 10 candidates have all failed", "out of luck", "run `hwnas resume`")


@pytest.mark.slow
def test_status_command_shows_rungs(hwnas: Command, quick_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = sets("search.trials=12", "search.fidelity.rungs=[0.1, 1.0]", "train.epochs=0.2")
    answer = hwnas("search", quick_recipe, "--run", run, *given)
    assert answer.status == 0, answer.err
    text = hwnas("status", run).out
    assert "12 of 12 candidates evaluated" in text
    assert "12 at 10% of the cost, " in text
    [rung] = json.loads(hwnas("status", run, "--json").out)["rungs"]
    assert (rung["share"], rung["evaluated"]) == (0.1, 12)
    assert 1 <= rung["promoted"] < 12


@pytest.mark.slow
def test_runs_with_one_storage_share_a_study(
    hwnas: Command, quick_recipe: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    given = sets(f"search.storage={url}", "search.evaluator=train", "train.epochs=0.1")
    assert hwnas("search", quick_recipe, "--run", tmp_path / "one", *given).status == 0
    answer = hwnas("search", quick_recipe, "--run", tmp_path / "two", *given)
    assert answer.status == 0, answer.err
    assert not (tmp_path / "two" / "scores.jsonl").exists(), "all was found by the first"
    assert "8 of 8 candidates evaluated" in hwnas("status", tmp_path / "two").out
    assert len(optuna.load_study(study_name="tiny/search", storage=url).best_trials) >= 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--set", "search.storage=postgresql://me:secret@host/db"], "holds a password"),
        (["--set", "search.storage=study.db"], "search.storage is not a supported address"),
        (
            ["--set", "search.timeout_s=5"],
            "an evaluation in the search's own process cannot be stop",
        ),
        (["--set", "search.retries=-1"], "search.retries is -1; expected at least 0"),
        (["--set", "search.fidelity.rungs=[0.5]"], "rungs is [0.5]; expected shares above 0 that"),
        (["--ray-address", "auto"], "'auto' was given, but search.workers is 0"),
    ],
)
def test_search_command_refuses_settings_that_cannot_work(
    hwnas: Command, quick_recipe: Path, tmp_path: Path, given: list[str], told: str
) -> None:
    line = hwnas("search", quick_recipe, "--run", tmp_path / "run", *given).refused(told)
    assert "secret" not in line


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--set", "search.storage=sqlite:////nowhere/a.db"], "cannot open the storage sqlite"),
        (["--set", "search.storage=postgresql://127.0.0.1:1/a"], "cannot open the storage postg"),
        (["--set", "search.workers=1", "--ray-address", "127.0.0.1:1"], "no Ray cluster can be"),
    ],
)
def test_search_command_refuses_unreachable_storage_and_cluster_first(
    hwnas: Command, quick_recipe: Path, tmp_path: Path, given: list[str], told: str
) -> None:
    run = tmp_path / "run"
    hwnas("search", quick_recipe, "--run", run, *given).refused(told)
    assert json.loads(hwnas("status", run, "--json").out)["stages"] == {}
