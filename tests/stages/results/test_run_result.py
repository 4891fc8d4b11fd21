import csv
import json
from dataclasses import replace
from pathlib import Path

from hwnas.stages import Job, SearchGoal
from hwnas.stages.results.run_result import summarise, write_front
from hwnas.stages.search import found


def test_summary_lists_the_front_and_all_finalists(job: Job, goal: SearchGoal) -> None:
    summary = summarise(job, goal)
    front = {trial.candidate.id for trial in found(job.folder.path, goal).front}
    assert {row.id for row in summary.front} == front | {row.id for row in summary.finalists}
    assert len(summary.finalists) == 3
    assert {pick for row in summary.front for pick in row.picks} == {
        "knee",
        "fastest",
        "most-accurate",
    }
    for row in summary.front:
        assert (row.measured_latency_ms is None) == (row.test is None) == (row.bundle is None)
        files = [] if row.bundle is None else [summary.run / row.bundle / "model.onnx"]
        assert row.file_bytes == next((file.stat().st_size for file in files), None)
    json.dumps(summary.to_json())


def test_write_front_writes_numbers_in_full_precision(
    job: Job, goal: SearchGoal, tmp_path: Path
) -> None:
    summary = summarise(job, goal)
    write_front(summary, tmp_path / "front.csv")
    with (tmp_path / "front.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, line in zip(summary.front, rows, strict=True):
        assert {name: float(line[name]) for name in row.values if name in line} == {
            name: float(value) for name, value in row.values.items() if name in line
        }
        assert line["weight_bytes"] == str(row.weight_bytes)
        assert line["picks"].split() == list(row.picks)
        chosen = {name: line[name] for name in line if name.startswith("stage") and line[name]}
        assert chosen == {k: str(v) for k, v in row.architecture.items() if k in chosen}
        assert len(chosen) == sum(name.startswith("stage") for name in row.architecture)


def test_summary_suggests_resume_if_there_are_no_bundles(job: Job, goal: SearchGoal) -> None:
    for path in (job.folder.path / "bundles").glob("*/*"):
        path.unlink()
    summary = summarise(job, goal)
    assert summary.next_commands == (f"hwnas resume {job.folder.path}",)


def test_summary_suggests_commands_for_its_target(job: Job, goal: SearchGoal) -> None:
    run = job.folder.path
    own = summarise(job, goal)
    assert own.next_commands[0] == f"hwnas export {run} --pick knee --out my-model"
    assert own.next_commands[-1].startswith(f"hwnas specialise {run} --target ")
    added = replace(own, output=run / "targets" / "cpu-onnxruntime-fp32-b8-t1")
    assert "--target cpu-onnxruntime-fp32-b8-t1 --pick knee" in added.next_commands[0]
    assert not any("specialise" in command for command in added.next_commands)
