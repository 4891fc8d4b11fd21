import json
import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest

from hwnas.stages import Job, SearchGoal
from hwnas.stages.calibrate import calibrated
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.finalists.limits import of_bundle
from hwnas.stages.finalists.shortlist import Shortlist, TriedFinalist
from hwnas.stages.measurements import read_measurements
from hwnas.stages.report import gather, write_results
from hwnas.stages.results.run_result import summarise
from hwnas.stages.search import found

TARGET = "cpu-onnxruntime-fp32-b1-t1"


def test_report_data_contains_the_results_of_the_run(job: Job, goal: SearchGoal) -> None:
    data = gather(job, goal, summarise(job, goal))
    assert len(data.trials) == 12
    assert len(data.finalists) == 3
    assert data.finalists == tuple(
        sorted(data.finalists, key=lambda f: f.measurement.latency_ms if f.measurement else 0)
    )
    assert {row.role for row in data.calibration} == {"left out in turn", "finalist"}
    timed = read_measurements(job.folder.path / "measurements.parquet")
    known = calibrated(job.run_inputs.space, "latency_ms", TARGET, job.folder.path)
    assert sorted(row.measured for row in data.calibration) == sorted(
        [row.measurement.latency_ms for row in timed] + known.costs.tolist()
    )
    for row in data.calibration:
        assert 0 <= row.lower <= row.predicted <= row.upper
    assert [row.step for row in data.training] == sorted({row.step for row in data.training})
    assert [stage.name for stage in data.stage_times][1:] == [
        "train",
        "search",
        "finalists",
        "report",
    ]


def test_report_hypervolume_never_falls(job: Job, goal: SearchGoal) -> None:
    [curve] = gather(job, goal, summarise(job, goal)).hypervolume
    assert len(curve.values) == len(curve.trials) == 12
    assert list(curve.values) == sorted(curve.values)
    assert curve.values[-1] > 0


def test_report_is_rewritten_from_the_run_folder(job: Job, goal: SearchGoal) -> None:
    report = job.folder.path / "report.html"
    before = report.read_text()
    report.unlink()
    write_results(job, goal)
    text = report.read_text()
    assert abs(len(text) - len(before)) < 2000
    for bundle in (job.folder.path / "bundles").iterdir():
        assert bundle.name in text
        described = json.loads((bundle / "bundle.json").read_text())
        assert described["id"] == bundle.name
    assert "<script src=" not in text, "it works offline"


def test_report_warns_about_disturbed_timings(job: Job, goal: SearchGoal) -> None:
    out = job.folder.path
    known = calibrated(job.run_inputs.space, "latency_ms", TARGET, out)
    timed = read_measurements(out / "measurements.parquet")
    contended = known.contended + sum(row.measurement.contended for row in timed)
    warnings = gather(job, goal, summarise(job, goal)).warnings
    limit_messages = [warning for warning in warnings if "disturbed by other processes" in warning]
    assert bool(limit_messages) == bool(contended)


def test_report_hypervolume_counts_only_networks_that_keep_the_limits(
    job: Job, limited: Callable[..., SearchGoal]
) -> None:
    free = limited()
    scores = sorted(t.values["accuracy"] for t in found(job.folder.path, free).trials)
    goal = limited(accuracy=scores[len(scores) // 2])
    data = gather(job, goal, summarise(job, goal))
    [curve] = data.hypervolume
    over = [not trial.feasible for trial in data.trials]
    assert any(over)
    before = [0.0, *curve.values]
    gains = [after - earlier for earlier, after in zip(before, curve.values, strict=False)]
    assert not any(gain for gain, out in zip(gains, over, strict=True) if out)
    assert curve.values[-1] > 0
    assert data.reference_point["accuracy"] > scores[0], "what does not count does not stretch it"


@pytest.mark.slow
def test_report_has_no_hypervolume_if_nothing_keeps_the_limits(
    job: Job, limited: Callable[..., SearchGoal]
) -> None:
    data = gather(job, limited(), summarise(job, limited()))
    assert data.hypervolume
    goal = limited(accuracy=0.9999)
    nothing = gather(job, goal, replace(summarise(job, limited()), front=()))
    assert (nothing.hypervolume, nothing.reference_point) == ((), {})


@pytest.mark.slow
def test_report_hypervolume_leaves_out_finalists_measured_over_a_limit(
    job: Job, limited: Callable[..., SearchGoal]
) -> None:
    bundles = read_bundles(job.folder.path / "bundles")
    goal = limited(accuracy=0.01)
    whole = gather(job, goal, summarise(job, goal)).hypervolume[0]
    shutil.rmtree(job.folder.path / "finalists.json", ignore_errors=True)
    checks = {
        name: tuple(
            replace(check, value=0.0, high=0.0) for check in of_bundle(bundle, goal.objectives)
        )
        for name, bundle in bundles.items()
    }
    for bundle in bundles.values():
        shutil.rmtree(bundle.folder)
    rows = [TriedFinalist(name, 0, "broken", False, found) for name, found in checks.items()]
    Shortlist(tuple(rows)).write(job.folder.path)
    less = gather(job, goal, summarise(job, goal)).hypervolume[0]
    numbers = [t.number for t in found(job.folder.path, goal).trials if t.candidate.id in bundles]
    before = [0.0, *less.values]
    assert all(less.values[number] == before[number] for number in numbers)
    assert less.values != whole.values


def test_report_latency_intervals_are_log_normal(job: Job, goal: SearchGoal) -> None:
    for row in gather(job, goal, summarise(job, goal)).calibration:
        assert row.lower > 0
        assert row.upper / row.predicted == pytest.approx(row.predicted / row.lower)
