import json

from hwnas.stages import Goal, Job
from hwnas.stages.measurements import read_measurements
from hwnas.stages.report import gather, write_results
from hwnas.stages.summary import summarise


def test_it_shows_what_the_run_found(job: Job, goal: Goal) -> None:
    data = gather(job, goal, summarise(job, goal))
    assert len(data.trials) == 12
    assert len(data.finalists) == 3
    assert data.finalists == tuple(
        sorted(data.finalists, key=lambda f: f.measurement.latency_ms if f.measurement else 0)
    )
    assert {row.role for row in data.calibration} == {"left out in turn", "finalist"}
    timed = read_measurements(job.folder.path / "measurements.parquet")
    assert sorted(row.measured_ms for row in data.calibration) == sorted(
        row.measurement.latency_ms for row in timed
    )
    for row in data.calibration:
        assert 0 <= row.lower_ms <= row.predicted_ms <= row.upper_ms
    assert [row.step for row in data.training] == sorted({row.step for row in data.training})
    assert [stage.name for stage in data.stage_times][1:] == [
        "train",
        "search",
        "finalists",
        "report",
    ]


def test_the_hypervolume_never_falls(job: Job, goal: Goal) -> None:
    [curve] = gather(job, goal, summarise(job, goal)).hypervolume
    assert len(curve.values) == len(curve.trials) == 12
    assert list(curve.values) == sorted(curve.values)
    assert curve.values[-1] > 0


def test_it_is_written_anew_from_what_is_there(job: Job, goal: Goal) -> None:
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


def test_other_work_on_the_machine_is_owned_up_to(job: Job, goal: Goal) -> None:
    contended = sum(
        row.measurement.contended
        for row in read_measurements(job.folder.path / "measurements.parquet")
    )
    warnings = gather(job, goal, summarise(job, goal)).warnings
    told = [warning for warning in warnings if "disturbed by other work" in warning]
    assert bool(told) == bool(contended)
