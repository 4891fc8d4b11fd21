from dataclasses import replace

import pytest
from scipy.stats import spearmanr

from hwnas.errors import InfeasibleError
from hwnas.search.objective import Objective
from hwnas.stages import Goal, Job
from hwnas.stages.calibrate import calibrate, check_limits, fitted_predictor
from hwnas.stages.measurements import read_measurements

TARGET = "cpu-onnxruntime-fp32-b1-t1"


def test_it_is_done_once(job: Job) -> None:
    table = job.folder.path / "measurements.parquet"
    before = table.read_bytes()
    with job.folder:
        calibrate(job, TARGET, table)
    assert table.read_bytes() == before


def test_the_predictor_knows_the_networks_that_were_timed(job: Job) -> None:
    table, space = job.folder.path / "measurements.parquet", job.ingredients.space
    predictor = fitted_predictor(space, TARGET, table)
    timed = [row for row in read_measurements(table) if row.role == "calibration"]
    workloads = [space.workload(row.architecture) for row in timed]
    predicted = [e.mean for e in predictor.predict(workloads)]
    measured = [row.measurement.latency_ms for row in timed]
    assert list(predictor.costs) == measured
    assert spearmanr(predicted, measured).statistic > 0.5


@pytest.mark.parametrize("metric", ["macs", "params"])
def test_a_limit_on_a_count_is_exact(job: Job, metric: str) -> None:
    space = job.ingredients.space
    least = getattr(space.workload(space.smallest()), metric)
    kept = Goal((Objective(metric, "minimize", limit=least),))
    check_limits(job, kept, {})
    missed = Goal((replace(kept.objectives[0], limit=least - 1),))
    with pytest.raises(InfeasibleError, match=f"{metric} at most .*has {least:,}"):
        check_limits(job, missed, {})


def test_a_latency_is_refused_only_where_it_is_surely_missed(job: Job, goal: Goal) -> None:
    predictor = fitted_predictor(
        job.ingredients.space, TARGET, job.folder.path / "measurements.parquet"
    )
    accuracy, latency = goal.objectives
    for limit, kept in ((1e-6, False), (1e6, True), (None, True)):
        limited = Goal((accuracy, replace(latency, limit=limit)))
        if kept:
            check_limits(job, limited, {TARGET: predictor})
            continue
        with pytest.raises(InfeasibleError, match="nearest that was found"):
            check_limits(job, limited, {TARGET: predictor})
