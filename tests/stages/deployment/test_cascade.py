"""Cascades of the finalists of a finished run, from the command line to the written folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.checksums import render_sums, sha256
from hwnas.deploy.cascades.cascade import Cascade
from hwnas.deploy.cascades.timing import Pass, network_pass
from hwnas.deploy.measurement.energy import RaplCounter
from hwnas.errors import ConfigError, InfeasibleError
from hwnas.stages import Job, SearchGoal
from hwnas.stages.deployment.cascade import make_cascade
from hwnas.stages.deployment.cascade_result import CascadeSettings
from hwnas.stages.finalists.bundles import read_bundles, score_of

Command = Callable[..., Any]
TARGET = "cpu-onnxruntime-fp32-b1-t1"


def finalists(target_accuracy: float, margin: float = 1.0) -> CascadeSettings:
    return CascadeSettings(target_accuracy, margin, among="finalists")


def by_accuracy(run: Path) -> list[Bundle]:
    bundles = read_bundles(run / "bundles").values()
    return sorted(bundles, key=lambda b: float(score_of(b, "accuracy", "validation")["value"]))


@pytest.fixture
def target_accuracy(finished: Path) -> float:
    """Accuracy that only the most accurate finalist reaches on its own."""
    *_, second, best = (
        score_of(b, "accuracy", "validation")["value"] for b in by_accuracy(finished)
    )
    return float(best + second) / 2


@pytest.fixture
def asked(target_accuracy: float, tmp_path: Path) -> tuple[str | Path, ...]:
    aim = ("--target-accuracy", str(target_accuracy), "--margin", "0")
    return *aim, "--among", "finalists", "--out", tmp_path / "two"


@pytest.fixture
def promising(finished: Path) -> Path:
    """Change the run: its most accurate finalist has a latency a thousand times as long.

    Networks for 8 x 8 pixels are so fast that the decision takes longer than both networks.
    """
    best = by_accuracy(finished)[-1]
    description = json.loads(json.dumps(best.description))
    for measurement in description["measurements"]:
        for clock in ("cpu_ms", "wall_ms"):
            measurement[clock] = {name: 1000 * ms for name, ms in measurement[clock].items()}
    path = best.folder / "bundle.json"
    path.write_text(json.dumps(description))
    sums = {**best.sums, "bundle.json": sha256(path)}
    (best.folder / "bundle.sha256").write_text(render_sums(sums))
    return finished


@pytest.fixture
def worthwhile(promising: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change the run: its most accurate finalist also takes longer when it runs."""
    best = by_accuracy(promising)[-1].description["id"]

    def longer(bundle: Bundle, images: Any, target: Any) -> Pass:
        once = network_pass(bundle, images, target)
        times = 100 if bundle.description["id"] == best else 1
        return lambda: [once() for _ in range(times)]

    monkeypatch.setattr("hwnas.stages.deployment.cascade.network_pass", longer)
    return promising


@pytest.mark.slow
def test_cascade_command_packs_a_cascade_that_verifies_and_runs(
    hwnas: Command,
    worthwhile: Path,
    target_accuracy: float,
    asked: tuple[str | Path, ...],
    job: Job,
    tmp_path: Path,
) -> None:
    out = tmp_path / "two"
    answer = hwnas("cascade", worthwhile, *asked)
    assert answer.status == 0, answer.err
    assert f"cascade  {out}, verified" in answer.out
    assert "best single" in answer.out
    packed = Cascade.load(out)
    assert packed.big.id == by_accuracy(worthwhile)[-1].description["id"]

    numbers = {(n["name"], n["of"], n.get("split", "")): n for n in packed.description["numbers"]}
    assert numbers["accuracy", "cascade", "validation"]["value"] >= target_accuracy
    test = job.run_inputs.data.test
    scores, on = packed.predict(test.take(np.arange(len(test)))[0])
    tested = numbers["accuracy", "cascade", "test"]
    assert tested["value"] == pytest.approx((scores.argmax(1) == test.targets).mean())
    assert (tested["n"], tested["kind"]) == (200, "evaluated")
    assert numbers["share_of_big", "cascade", "test"]["value"] == pytest.approx(on.mean())
    assert numbers["latency", "cascade", ""]["kind"] == "modelled"
    measured = numbers["mean_latency", "cascade", "test"]
    assert measured["kind"] == "measured"
    assert 0 < measured["p20"] <= measured["value"] <= measured["p80"]

    assert "golden outputs" in hwnas("verify", out).out
    said = hwnas("run", out, worthwhile / "example.png").out
    assert "(small network)" in said or "(big network)" in said
    (found,) = json.loads(hwnas("run", out, worthwhile / "example.png", "--json").out)
    assert found["network"] in ("small", "big")
    hwnas("cascade", worthwhile, *asked).refused("exists already; choose another --out")


@pytest.mark.slow
def test_cascade_command_writes_nothing_if_a_cascade_saves_no_time(
    hwnas: Command, finished: Path, asked: tuple[str | Path, ...], tmp_path: Path
) -> None:
    answer = hwnas("cascade", finished, *asked)
    assert answer.status == 0, answer.err
    best = by_accuracy(finished)[-1].description["id"]
    assert "no cascade was written" in answer.out
    assert f"next: hwnas export {finished} --pick {best}" in answer.out
    found = json.loads(hwnas("cascade", finished, *asked, "--json").out)
    assert (found["gains"], found["folder"], found["single"]["name"]) == (False, None, best)
    assert not (tmp_path / "two").exists()


@pytest.mark.slow
def test_cascade_command_writes_nothing_if_the_cascade_is_measured_slower(
    hwnas: Command, promising: Path, asked: tuple[str | Path, ...], tmp_path: Path
) -> None:
    answer = hwnas("cascade", promising, *asked)
    assert answer.status == 0, answer.err
    assert "the best single network takes less time (measured)" in answer.out
    assert f"next: hwnas export {promising} --pick " in answer.out
    assert not (tmp_path / "two").exists()


@pytest.mark.slow
def test_cascade_command_saves_energy_if_energies_are_known(
    hwnas: Command,
    worthwhile: Path,
    target_accuracy: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path / "home"))
    asked = ("--target-accuracy", str(target_accuracy), "--margin", "0", "--save", "energy")
    asked += ("--among", "finalists")
    out = tmp_path / "two"
    if not RaplCounter.find():
        hwnas("cascade", worthwhile, *asked, "--out", out).refused(
            "energy cannot be measured here", f"calibrate --target {TARGET} --from TABLE.csv"
        )
        table = tmp_path / "energies.csv"
        bundles = by_accuracy(worthwhile)
        lines = [f"{b.onnx_file},{b.measurements[0].latency_ms * 5}" for b in bundles]
        table.write_text("\n".join(["network,energy_mj", *lines]))
        assert hwnas("calibrate", "--target", TARGET, "--from", table).status == 0
    found = json.loads(hwnas("cascade", worthwhile, *asked, "--out", out, "--json").out)
    costs = found["costs"]
    assert (costs["name"], costs["unit"]) == ("energy", "mJ")
    assert set(costs["networks"]) == {each.description["id"] for each in by_accuracy(worthwhile)}
    assert costs["decision"] > 0
    if found["gains"]:
        numbers = Cascade.load(out).description["numbers"]
        [energy] = [n for n in numbers if (n["name"], n["of"]) == ("energy", "cascade")]
        assert (energy["kind"], energy["unit"]) == ("modelled", "mJ")


@pytest.mark.slow
def test_make_cascade_refuses_unreachable_accuracy_and_wrong_goals(
    job: Job, goal: SearchGoal, tmp_path: Path
) -> None:
    with pytest.raises(InfeasibleError, match=r"accuracy 0\.999 .* 100 validation images; the be"):
        make_cascade(job, goal, finalists(0.999, 1.0), tmp_path / "two")
    batched = SearchGoal.specialised(job.recipe, "cpu-onnxruntime-fp32-b8-t1")
    with pytest.raises(ConfigError, match="one image at a time"):
        make_cascade(job, batched, finalists(0.5), tmp_path / "two")
    with pytest.raises(ConfigError, match="no objective latency_ms"):
        make_cascade(job, SearchGoal(job.recipe.objective[:1]), finalists(0.5), tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_cascade_command_refuses_wrong_runs_and_targets(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    asked = ("--target-accuracy", "0.5", "--out", tmp_path / "two")
    hwnas("cascade", tmp_path, *asked).refused("holds no run")
    unknown = "cpu-onnxruntime-fp32-b1-t2"
    hwnas("cascade", finished, *asked, "--target", unknown).refused("has no results for", unknown)
    hwnas("cascade", finished, "--out", tmp_path / "two").refused("--target-accuracy")


@pytest.mark.slow
def test_make_cascade_leaves_out_finalists_that_break_a_limit(
    job: Job,
    goal: SearchGoal,
    limited: Callable[..., SearchGoal],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    run = job.folder.path
    times = sorted(bundle.measurements[0].latency_ms for bundle in by_accuracy(run))
    notes: list[str] = []
    monkeypatch.setattr(job.reporter, "note", notes.append)
    found = make_cascade(
        job, limited(latency_ms=(times[0] + times[1]) / 2), finalists(0.01, 0.0), tmp_path / "two"
    )
    assert found.single is not None
    assert found.cascade is None
    assert found.single.expected == times[0]
    assert sum("is left out" in note for note in notes) == 2
    with pytest.raises(InfeasibleError, match="none of 3 finalists meets the limits"):
        make_cascade(job, limited(latency_ms=times[0] / 10), finalists(0.01, 0.0), tmp_path / "two")
