import json
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from hwnas.errors import InfeasibleError
from hwnas.run_folder import RunFolder
from hwnas.search.objectives.objective import Objective
from hwnas.stages import Job, SearchGoal
from hwnas.stages.calibrate import calibration, check_limits, fitted_predictor
from hwnas.stages.measurements import read_measurements

TARGET = "cpu-onnxruntime-fp32-b1-t1"


def test_calibration_runs_only_once(job: Job) -> None:
    table = job.folder.path / "measurements.parquet"
    before = table.read_bytes()
    with job.folder:
        job.perform(calibration(job, TARGET, table))
    assert table.read_bytes() == before


def test_calibration_runs_again_on_another_processor(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = job.folder.path / "measurements.parquet"
    assert job.is_done(calibration(job, TARGET, table))
    for module in ("stages.calibrate", "deploy.measurement.timing"):
        monkeypatch.setattr(f"hwnas.{module}.processor_of", lambda hardware: "another processor")
    moved = calibration(job, TARGET, table)
    assert not job.is_done(moved)
    finalists = [row for row in read_measurements(table) if row.role == "finalist"]
    with job.folder:
        job.perform(moved)
    rows = read_measurements(table)
    assert [row for row in rows if row.role == "finalist"] == finalists
    timed = [row.measurement.hardware for row in rows if row.role == "calibration"]
    assert timed == ["another processor"] * job.recipe.predictor.networks
    assert job.is_done(calibration(job, TARGET, table))


def test_calibration_is_shared_by_searches_with_one_study(job: Job, tmp_path: Path) -> None:
    """Runs on equal processors use the same measurements, so that their predictions agree."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    search = replace(job.recipe.search, storage=url)
    shared = replace(job.run_inputs, recipe=replace(job.recipe, search=search))
    predicted = []
    for name in ("one", "two"):
        folder = RunFolder(tmp_path / name, shared.recipe, {**job.folder.about, "stages": {}})
        folder.path.mkdir()
        sharing, table = Job(shared, folder, job.reporter), tmp_path / name / "table.parquet"
        with folder.path.joinpath("run.json").open("w") as file:
            json.dump(folder.about, file)
        with folder:
            sharing.perform(calibration(sharing, TARGET, table))
        predicted.append(fitted_predictor(shared.space, TARGET, table).costs)
    assert predicted[0] == predicted[1]


def test_fitted_predictor_contains_the_timed_networks(job: Job) -> None:
    table, space = job.folder.path / "measurements.parquet", job.run_inputs.space
    predictor = fitted_predictor(space, TARGET, table)
    timed = [row for row in read_measurements(table) if row.role == "calibration"]
    workloads = [space.workload(row.architecture) for row in timed]
    predicted = [e.mean for e in predictor.predict(workloads)]
    measured = [row.measurement.latency_ms for row in timed]
    assert list(predictor.costs) == measured
    assert spearmanr(predicted, measured).statistic > 0.5


@pytest.mark.parametrize("metric", ["macs", "params"])
def test_check_limits_is_exact_for_counts(job: Job, metric: str) -> None:
    space = job.run_inputs.space
    least = getattr(space.workload(space.smallest()), metric)
    kept = SearchGoal((Objective(metric, "minimize", limit=least),))
    check_limits(job, kept, {})
    missed = SearchGoal((replace(kept.objectives[0], limit=least - 1),))
    with pytest.raises(InfeasibleError, match=f"{metric} of at most .* is {least:,}"):
        check_limits(job, missed, {})


def test_check_limits_refuses_only_latencies_that_are_out_of_reach(
    job: Job, goal: SearchGoal
) -> None:
    predictor = fitted_predictor(
        job.run_inputs.space, TARGET, job.folder.path / "measurements.parquet"
    )
    accuracy, latency = goal.objectives
    for limit, kept in ((1e-6, False), (1e6, True), (None, True)):
        limited = SearchGoal((accuracy, replace(latency, limit=limit)))
        if kept:
            check_limits(job, limited, {TARGET: predictor})
            continue
        with pytest.raises(InfeasibleError, match="lowest that was found"):
            check_limits(job, limited, {TARGET: predictor})
