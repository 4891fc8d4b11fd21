"""Deployment experiments at toy size: server, agent and choice of a variant."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.deploy.choices import re_measured
from experiments.record import read_rows
from hwnas.deploy import Measurement, Quantiles
from hwnas.deploy.variants import ConvertedNetwork
from hwnas.deploy.variants.sweep import Sweep, VariantResult

ROOT = Path(__file__).parents[2]
TOY = ["--size", "32", "--seconds", "2", "--rounds", "1", "--connections", "4"]


@pytest.mark.exhaustive
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="server and client need a core each")
def test_load_test_records_results_and_repeats_nothing(tmp_path: Path) -> None:
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))[:2]]
    command = [sys.executable, "-m", "experiments.deploy.serve", *TOY, "--cores", *cores]
    command += ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "round 0: served" in first.stdout
    rows = {(row.metric, row.subject): row for row in read_rows(tmp_path / "out" / "serve.jsonl")}
    served = rows["images_per_second", "hwnas serve"]
    bare = rows["images_per_second", "bare loop"]
    assert served.details["errors"] == {}
    assert served.n > 0
    assert rows["ratio", "bare loop / hwnas serve, median"].value == pytest.approx(
        bare.value / served.value
    )
    p50, p99 = (rows[name, "hwnas serve"].value for name in ("p50_ms", "p99_ms"))
    assert 0 < p50 <= p99
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert "round 0" not in second.stdout


@pytest.mark.exhaustive
def test_loopback_experiment_compares_and_kills_the_agent_once(tmp_path: Path) -> None:
    options = ["--rounds", "1", "--networks", "1", "--size", "32", "--jobs", "4", "--kills", "1"]
    command = [sys.executable, "-m", "experiments.deploy.agent.loopback", *options]
    command += ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    first, second = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True) for _ in range(2)
    )
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    for told in ("round 0: 1 networks here and through the agent", "killed 1 times"):
        assert told in first.stdout
        assert told not in second.stdout
    rows = read_rows(tmp_path / "out" / "loopback.jsonl")
    times = {(row.seed, row.subject.partition(" ")[2]) for row in rows if row.metric == "p50_ms"}
    assert times == {(0, "here"), (0, "through the agent")}
    [ratio] = [row for row in rows if row.metric == "ratio"]
    [worst] = [row for row in rows if row.metric == "largest_difference"]
    assert worst.value == pytest.approx(abs(ratio.value - 1))
    counts = {row.metric: row.value for row in rows if "killed" in row.subject}
    assert (counts["answered"], counts["lost"], counts["doubled"]) == (4, 0, 0)
    assert counts["begun"] <= 4 + counts["kills"] == 5


def test_watch_reports_jobs_that_run_again(tmp_path: Path) -> None:
    from experiments.deploy.agent.killed import Watch

    watch, folders = Watch(tmp_path), iter(range(100))

    def write(place: str, job: str, **more: object) -> None:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"job": {"subjects": {job: {}}}, **more}))
        watch.glance()

    def begin(job: str) -> None:
        write(f"work/{next(folders)}/job.json", job)

    for job in ("interrupted", "over", "answered", "twice"):
        write(f"jobs/{job}.json", job, state=None)
        begin(job)
    watch.answered("answered")
    write("jobs/over.json", "over", state={"state": "done"})
    begin("twice")
    assert watch.doubled() == ["twice was begun 2 times in one life of the agent"]
    watch.life_ended()
    begin("interrupted")
    assert len(watch.doubled()) == 1, "what was interrupted is begun again"
    begin("over")
    begin("answered")
    write("jobs/another.json", "over", state=None)
    assert sorted(watch.doubled()) == [
        "answered was begun again after its end",
        "over was begun again after its end",
        "over was queued as 2 jobs",
        "twice was begun 2 times in one life of the agent",
    ]
    assert (watch.begun, watch.interrupted) == (8, 1)


@pytest.mark.exhaustive
def test_attacked_agent_refuses_every_hostile_request(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.deploy.agent.attack", "--count", "100"]
    command += ["--seconds", "2", "--out", str(tmp_path / "report.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["wrong"] == []
    assert found["answers"]["no token"] == {"401": found["answers"]["no token"]["401"]}
    assert found["answers"]["endless loop"] == {"failed": 1}
    assert set(found["in_the_end"].values()) == {"fine"}
    memory = found["resident_mb"]
    assert 0 < memory["before"] <= memory["most"]


def test_attack_judges_which_answers_are_refusals() -> None:
    from experiments.deploy.agent.attack import judged
    from experiments.deploy.agent.hostile_requests import Attempt

    due, other = Attempt("a", b"x"), Attempt("b", b"x", due=False)
    for attempt, answer, has_token, wrong in (
        (due, "401", False, False),
        (due, "404", False, True),  # reveals which paths exist
        (due, "404", True, False),
        (due, "200", True, True),
        (due, "500", True, True),
        (due, "closed", True, True),
        (other, "closed", False, False),
        (other, "no answer", False, True),
        (other, "no agent", True, True),
    ):
        assert judged(attempt, answer, has_token).wrong == wrong, (attempt, answer)


@pytest.mark.slow
def test_hostile_requests_are_determined_by_their_seed() -> None:
    from experiments.deploy.agent.hostile_requests import Signer, signed, tampered, unsigned

    signer = Signer("0f" * 32, "0e" * 32, "challenge")
    for seed in range(1000):
        assert unsigned(seed) == unsigned(seed)
        for made in (signed, tampered):
            assert made(seed, signer) == made(seed, signer)
    assert len({unsigned(seed).content for seed in range(300)}) > 100


def test_re_measured_uses_one_timing_for_a_choice_and_its_equal_rival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two measurements of one file never agree exactly, yet its ratio to itself must be 1."""
    rng = random.Random(0)

    def measured(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked = json.loads(command[-1])
        times = json.dumps({name: rng.uniform(1, 2) for name in asked})
        return subprocess.CompletedProcess(command, 0, f"{times}\n", "")

    monkeypatch.setattr(subprocess, "run", measured)
    quantiles = Quantiles(1.0, 1.0, 1.0)
    here = Measurement("t", "cpu", quantiles, quantiles, 1, False, 1.0, "", {}, {}, "")
    ms = {"fp32": 1.0, "int8": 2.0}
    contenders = [
        VariantResult(
            name,
            f"cpu-onnxruntime-{name}-b1-t1",
            ConvertedNetwork(Path(f"{name}.onnx")),
            difference=0.0,
            measurement=replace(here, cpu_ms=Quantiles(each, each, each)),
        )
        for name, each in ms.items()
    ]
    rows = re_measured("a network", Sweep(tuple(contenders), 0.0), [])
    ratios = {row.subject: row.value for row in rows}
    assert ratios["a network / always fp32"] == 1
    assert ratios["a network / always int8"] not in (None, 1)
