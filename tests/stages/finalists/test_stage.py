import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from hwnas.deploy import Bundle
from hwnas.deploy.export.to_onnx import Export
from hwnas.deploy.measurement.measurement import Measurement, Quantiles
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError
from hwnas.interval import wilson_interval
from hwnas.search.objectives.objective import losses
from hwnas.search.training import load_weights
from hwnas.search_spaces import Architecture
from hwnas.stages import Job, RunInputs, SearchGoal
from hwnas.stages.finalists.bundles import picks, read_bundles, score_of
from hwnas.stages.finalists.exporting import export_network
from hwnas.stages.finalists.shortlist import choose
from hwnas.stages.finalists.stage import finalising
from hwnas.stages.measurements import read_measurements
from hwnas.stages.report import gather
from hwnas.stages.results.run_result import summarise
from hwnas.stages.search import found

TARGET = "cpu-onnxruntime-fp32-b1-t1"


def test_choose_takes_finalists_from_the_front_first(job: Job, goal: SearchGoal) -> None:
    result = found(job.folder.path, goal)
    chosen = choose(result, 3)
    assert len({trial.candidate.id for trial in chosen}) == 3
    table = losses(goal.objectives, [trial.values for trial in result.trials])
    best = {result.trials[i].candidate.id for i in table.argmin(0)}
    front = {trial.candidate.id for trial in result.front}
    if len(front) >= 3:
        assert {trial.candidate.id for trial in chosen} <= front
    assert best & front & {trial.candidate.id for trial in chosen}
    assert len(choose(result, 99)) == len(result.trials), "no more than there are"


def test_run_has_a_bundle_of_each_finalist(job: Job, goal: SearchGoal) -> None:
    bundles = read_bundles(job.folder.path / "bundles")
    chosen = choose(found(job.folder.path, goal), 3)
    assert bundles.keys() == {trial.candidate.id for trial in chosen}
    assert read_bundles(job.folder.path / "none") == {}


def test_picks_use_measured_latency_and_validation_score(job: Job) -> None:
    bundles = read_bundles(job.folder.path / "bundles")
    metric = job.run_inputs.task.metrics[0]
    named = picks(bundles, metric, job.recipe.objective)
    latency = {name: b.measurements[0].latency_ms for name, b in bundles.items()}
    accuracy = {n: score_of(b, "accuracy", "validation")["value"] for n, b in bundles.items()}
    assert latency[named["fastest"]] == min(latency.values())
    assert accuracy[named["most-accurate"]] == max(accuracy.values())
    knee = named["knee"]
    assert not any(latency[n] < latency[knee] and accuracy[n] > accuracy[knee] for n in bundles), (
        "nothing is better than the knee in both"
    )
    assert picks({}, metric, job.recipe.objective) == {}


def test_bundle_weights_reproduce_the_stated_test_score(job: Job) -> None:
    [bundle, *_] = read_bundles(job.folder.path / "bundles").values()
    test = job.run_inputs.data.test
    images, labels = test.take(np.arange(len(test)))
    right = float((bundle.predict(images).argmax(1) == labels).mean())
    stated = score_of(bundle, "accuracy", "test")
    assert stated["n"] == len(test)
    assert abs(right - stated["value"]) <= 1 / len(test)


def by_latency(job: Job) -> list[Bundle]:
    bundles = read_bundles(job.folder.path / "bundles").values()
    return sorted(bundles, key=lambda bundle: bundle.measurements[0].latency_ms)


def test_picks_leave_out_networks_measured_to_break_a_limit(
    job: Job, limited: Callable[..., SearchGoal]
) -> None:
    fastest, second, _ = by_latency(job)
    metric = job.run_inputs.task.metrics[0]
    bundles = {bundle.folder.name: bundle for bundle in by_latency(job)}
    limit = (fastest.measurements[0].latency_ms + second.measurements[0].latency_ms) / 2
    named = picks(bundles, metric, limited(latency_ms=limit).objectives)
    assert set(named.values()) == {fastest.folder.name}
    assert picks(bundles, metric, limited(latency_ms=1e-4).objectives) == {}
    assert picks(bundles, metric, limited(accuracy=1.1).objectives) == {}


def test_bundle_scores_have_wilson_intervals(job: Job) -> None:
    for bundle in by_latency(job):
        for split in ("validation", "test"):
            row = score_of(bundle, "accuracy", split)
            low, high = row["interval"]
            assert 0 <= low < row["value"] < high <= 1 or row["value"] in (0, 1)
            assert [low, high] == pytest.approx(wilson_interval(row["value"], row["n"]).ends)
            assert row["interval_method"] == "wilson"


def timed(ms: float) -> Measurement:
    spread = Quantiles(0.98 * ms, ms, 1.02 * ms)
    return Measurement(
        TARGET, "cpu", spread, spread, 50, False, 1.0, "a processor", {}, {}, "2026-01-01"
    )


@pytest.fixture
def weights(job: Job) -> Mapping[str, Tensor]:
    return load_weights(job.folder.path / "supernet" / "weights.safetensors")


def tried(job: Job) -> list[dict[str, Any]]:
    rows = json.loads((job.folder.path / "finalists.json").read_text())["tried"]
    return [{**row, "id": str(row["id"])} for row in rows]


@pytest.mark.slow
def test_finalists_stage_replaces_a_candidate_that_breaks_a_limit(
    job: Job,
    limited: Callable[..., SearchGoal],
    weights: Mapping[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goal = limited(latency_ms=50.0)
    result = found(job.folder.path, goal)
    first = {trial.candidate.id for trial in choose(result, 3)}
    slow = min(first)
    monkeypatch.setattr(
        "hwnas.stages.finalists.stage.measure",
        lambda models, target: {n: timed(200.0 if n == slow else 10.0) for n in models},
    )
    job.reporter.log = job.folder.path / "log.jsonl"
    job.perform(finalising(job, goal, result, weights))
    bundles = read_bundles(job.folder.path / "bundles")
    assert len(bundles) == 3
    assert slow not in bundles
    assert first - {slow} < bundles.keys()
    states = {row["id"]: (row["state"], row["round"], row["packed"]) for row in tried(job)}
    assert states[slow] == ("broken", 0, False)
    [new] = bundles.keys() - first
    assert states[new] == ("kept", 1, True)
    log = (job.folder.path / "log.jsonl").read_text()
    assert f"finalist {slow}: latency_ms@{TARGET} is 200 (measured); the limit is 50" in log
    assert f"the next candidates take their place: {new}" in log
    for bundle in bundles.values():
        [check] = bundle.description["provenance"]["limits"]
        assert (check["state"], check["value"]) == ("kept", 10.0)
    timings = read_measurements(job.folder.path / "measurements.parquet")
    assert slow in {row.architecture.id for row in timings if row.role == "finalist"}
    before = (job.folder.path / "finalists.json").stat().st_mtime_ns
    job.perform(finalising(job, goal, result, weights))
    assert (job.folder.path / "finalists.json").stat().st_mtime_ns == before, "done once"


@pytest.mark.slow
def test_finalists_stage_keeps_and_marks_the_closest_if_none_keeps_limits(
    job: Job,
    limited: Callable[..., SearchGoal],
    weights: Mapping[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goal = limited(latency_ms=50.0)
    deploy = replace(job.recipe.deploy, top=1)
    recipe = replace(job.recipe, deploy=deploy)
    job = replace(job, run_inputs=replace(job.run_inputs, recipe=recipe))
    result = found(job.folder.path, goal)
    monkeypatch.setattr(
        "hwnas.stages.finalists.stage.measure",
        lambda models, target: {name: timed(100.0 + int(name[:2], 16)) for name in models},
    )
    job.perform(finalising(job, goal, result, weights))
    bundles = read_bundles(job.folder.path / "bundles")
    rows = tried(job)
    assert len(rows) == 3, "three rounds of one"
    assert {row["state"] for row in rows} == {"broken"}
    [bundle] = bundles.values()
    latencies = {row["limits"][0]["value"] for row in rows}
    assert bundle.measurements[0].latency_ms == min(latencies)
    summary = summarise(job, goal)
    assert {row.limit_state for row in summary.finalists} == {"broken"}
    assert not any(row.picks for row in summary.front)
    data = gather(job, goal, summary)
    assert {each.limit_state for each in data.finalists} == {"broken"}
    assert sum("the limit is 50" in warning for warning in data.warnings) == 3
    assert data.hypervolume[0].values[-1] > 0, "those that nobody measured count"


@pytest.mark.slow
def test_finalists_stage_replaces_a_network_that_cannot_be_exported(
    job: Job, goal: SearchGoal, weights: Mapping[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = found(job.folder.path, goal)
    broken = choose(result, 3)[1].candidate.network
    shutil.rmtree(job.folder.path / "bundles")
    (job.folder.path / "finalists.json").unlink(missing_ok=True)

    def exported(run_inputs: RunInputs, network: Architecture, *rest: Any) -> Export:
        if network == broken:
            raise ArtifactError("its outputs are no numbers")
        return export_network(run_inputs, network, *rest)

    monkeypatch.setattr("hwnas.stages.finalists.packing.export_network", exported)
    monkeypatch.setattr(
        "hwnas.stages.finalists.stage.measure",
        lambda models, target: dict.fromkeys(models, timed(1.0)),
    )
    job.perform(finalising(job, goal, result, weights))
    bundles = read_bundles(job.folder.path / "bundles")
    assert len(bundles) == 3
    assert broken not in {bundle.architecture for bundle in bundles.values()}
    [row] = [row for row in tried(job) if row["state"] == "failed"]
    assert row["reason"] == "its outputs are no numbers"
    assert row["id"] == broken.id


@pytest.mark.slow
def test_finalists_stage_replaces_only_the_network_a_target_refuses(
    job: Job, goal: SearchGoal, weights: Mapping[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = found(job.folder.path, goal)
    refused = choose(result, 3)[0].candidate.id
    shutil.rmtree(job.folder.path / "bundles")

    def measured(models: Mapping[str, Path], target: Target) -> dict[str, Measurement]:
        if refused in models:
            raise ArtifactError("it has an operator that this runtime does not know")
        return dict.fromkeys(models, timed(1.0))

    monkeypatch.setattr("hwnas.stages.finalists.stage.measure", measured)
    job.perform(finalising(job, goal, result, weights))
    bundles = read_bundles(job.folder.path / "bundles")
    assert (len(bundles), refused in bundles) == (3, False)
