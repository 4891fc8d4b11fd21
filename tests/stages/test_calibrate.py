import json
import random
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from hwnas.errors import InfeasibleError
from hwnas.predictors import DevicePredictor, DeviceProfile, DeviceStore
from hwnas.recipe import PredictorConfig, Recipe
from hwnas.run_folder import RunFolder
from hwnas.search.objectives.objective import Objective
from hwnas.search_spaces import OperatorCountTable
from hwnas.stages import Job, SearchGoal
from hwnas.stages.calibrate import calibration, check_limits, fitted_predictor, store_of
from hwnas.stages.measurements import read_measurements, write_measurements

TARGET = "cpu-onnxruntime-fp32-b1-t1"
LATENCY = "latency_ms"


def latencies(out: Path) -> list[float]:
    costs: list[float] = store_of(out).load(TARGET).costs.tolist()
    return costs


def test_calibration_runs_only_once(job: Job) -> None:
    out = job.folder.path
    before = latencies(out)
    with job.folder:
        job.perform(calibration(job, LATENCY, TARGET, out))
    assert latencies(out) == before


@pytest.mark.slow
def test_calibration_runs_again_on_another_processor(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = job.folder.path
    assert job.is_done(calibration(job, LATENCY, TARGET, out))
    before = latencies(out)
    for module in ("stages.calibrate", "predictors.devices.calibration"):
        monkeypatch.setattr(f"hwnas.{module}.processor_of", lambda hardware: "another processor")
    moved = calibration(job, LATENCY, TARGET, out)
    assert not job.is_done(moved)
    with job.folder:
        job.perform(moved)
    found = store_of(out).load(TARGET)
    assert found.hardware == "another processor"
    assert len(found) == job.recipe.predictor.networks
    assert not set(latencies(out)) & set(before)
    assert job.is_done(calibration(job, LATENCY, TARGET, out))


def another_job(job: Job, folder: Path, recipe: Recipe) -> Job:
    """Return a job with the same inputs, an empty folder and a recipe."""
    made = RunFolder(folder, recipe, {**job.folder.about, "stages": {}})
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(made.about))
    return Job(replace(job.run_inputs, recipe=recipe), made, job.reporter)


@pytest.mark.slow
def test_calibration_is_shared_by_searches_with_one_study(job: Job, tmp_path: Path) -> None:
    """Runs on equal processors use the same measurements, so that their predictions agree."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    recipe = replace(
        job.recipe,
        search=replace(job.recipe.search, storage=url),
        predictor=replace(job.recipe.predictor, reuse=False),
    )
    for name in ("one", "two"):
        sharing = another_job(job, tmp_path / name, recipe)
        with sharing.folder:
            sharing.perform(calibration(sharing, LATENCY, TARGET, tmp_path / name))
    assert latencies(tmp_path / "one") == latencies(tmp_path / "two")


@pytest.mark.slow
@pytest.mark.parametrize("reuse", [True, False])
def test_calibration_uses_the_measurements_of_the_user(
    job: Job, tmp_path: Path, reuse: bool
) -> None:
    users = DeviceStore.default()
    users.save(store_of(job.folder.path).load(TARGET))
    known = users.load(TARGET)
    recipe = replace(job.recipe, predictor=PredictorConfig(len(known) + 1, reuse))
    other = another_job(job, tmp_path / "other", recipe)
    with other.folder:
        other.perform(calibration(other, LATENCY, TARGET, other.folder.path))
    found = store_of(other.folder.path).load(TARGET)
    assert len(found) == len(known) + 1
    assert (found.costs.tolist()[:-1] == known.costs.tolist()) == reuse
    assert len(users.load(TARGET)) == len(known) + reuse


@pytest.mark.slow
def test_calibration_ignores_measurements_of_other_hardware_and_versions(
    job: Job, tmp_path: Path
) -> None:
    own = store_of(job.folder.path).load(TARGET)
    elsewhere = [replace(own, hardware="an abacus"), replace(own, versions={"onnxruntime": "0.1"})]
    for number, profile in enumerate(elsewhere):
        DeviceStore.default().save(profile)
        other = another_job(job, tmp_path / f"run{number}", job.recipe)
        with other.folder:
            other.perform(calibration(other, LATENCY, TARGET, other.folder.path))
        found = store_of(other.folder.path).load(TARGET)
        assert (found.hardware, found.versions) == (own.hardware, own.versions)
        assert set(found.costs).isdisjoint(own.costs)


def test_fitted_predictor_follows_the_calibration_of_its_run(job: Job, tmp_path: Path) -> None:
    space = job.run_inputs.space
    sampled = [space.workload(space.sample(random.Random(i))) for i in range(40)]
    networks = sorted(sampled, key=attrgetter("macs"))[::8]
    costs = np.array([1e-6 * network.macs for network in networks])
    names = tuple(f"network {i}" for i in range(len(networks)))
    steps = OperatorCountTable.of_workloads(networks)
    store_of(tmp_path).save(DeviceProfile(TARGET, LATENCY, names, steps, costs))
    predictor = fitted_predictor(space, LATENCY, TARGET, tmp_path)
    assert isinstance(predictor, DevicePredictor)
    assert list(predictor.costs) == costs.tolist()
    predicted = [estimate.mean for estimate in predictor.predict(networks)]
    assert predicted == sorted(predicted)


def test_calibrations_of_earlier_versions_are_read_from_the_table(job: Job) -> None:
    """Until 0.1, they were rows of the table of measurements, with the role ``calibration``."""
    out, space = job.folder.path, job.run_inputs.space
    finalists = read_measurements(out / "measurements.parquet")
    old = [replace(row, role="calibration") for row in finalists]
    write_measurements(out / "measurements.parquet", "calibration", old)
    store_of(out).remove(TARGET)
    predictor = fitted_predictor(space, LATENCY, TARGET, out)
    assert isinstance(predictor, DevicePredictor)
    assert list(predictor.costs) == [row.measurement.latency_ms for row in old]
    stage = calibration(job, LATENCY, TARGET, out)
    assert stage.made()
    adopted = stage.adopt()
    assert adopted is not None
    assert adopted.inputs["hardware"] == stage.identity.inputs["hardware"]


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["macs", "params"])
def test_check_limits_is_exact_for_counts(job: Job, metric: str) -> None:
    space = job.run_inputs.space
    least = getattr(space.workload(space.smallest()), metric)
    kept = SearchGoal((Objective(metric, "minimize", limit=least),))
    check_limits(job, kept, {})
    missed = SearchGoal((replace(kept.objectives[0], limit=least - 1),))
    with pytest.raises(InfeasibleError, match=f"{metric} of at most .* is {least:,}"):
        check_limits(job, missed, {})


@pytest.mark.slow
def test_check_limits_refuses_only_latencies_that_are_out_of_reach(
    job: Job, goal: SearchGoal
) -> None:
    predictor = fitted_predictor(job.run_inputs.space, LATENCY, TARGET, job.folder.path)
    accuracy, latency = goal.objectives
    for limit, kept in ((1e-6, False), (1e6, True), (None, True)):
        limited = SearchGoal((accuracy, replace(latency, limit=limit)))
        if kept:
            check_limits(job, limited, {latency.label: predictor})
            continue
        with pytest.raises(InfeasibleError, match="lowest that was found"):
            check_limits(job, limited, {latency.label: predictor})
