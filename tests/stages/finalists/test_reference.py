"""The reference network of a run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwnas.deploy import Bundle
from hwnas.search_spaces.mobilenet.presets import PRESETS

Command = Callable[..., Any]


@pytest.mark.exhaustive
def test_reference_can_be_added_later_without_repeating_other_stages(
    hwnas: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Path("/dev/shm").is_dir():  # often another file system, as /tmp is on many machines
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    before = json.loads((finished / "run.json").read_text())["stages"]
    answer = hwnas("resume", finished, "--set", "deploy.reference=true")
    assert answer.status == 0, answer
    stages = json.loads((finished / "run.json").read_text())["stages"]
    assert [name for name in stages if stages[name] != before.get(name)] == ["report", "reference"]

    bundle = Bundle.load(finished / "reference")
    bundle.verify()
    assert bundle.description["space"] == "mobilenet"
    assert bundle.architecture.as_dict()["width"] == 1.0, "no limit, so it is as wide as it gets"
    assert "MobileNetV3-Small x1 trained alone" in answer.out
    assert "(reference)" in answer.out
    assert "MobileNetV3-Small" in (finished / "report.html").read_text()

    again = hwnas("resume", finished, "--json")
    assert "nothing is left to do" in again.err
    found = json.loads(again.out)
    assert found["reference"]["bundle"] == "reference"
    assert found["reference"]["measured_latency_ms"] > 0
    fast = {row["id"]: row["measured_latency_ms"] for row in found["front"] if row["bundle"]}
    assert set(found["beats_reference"]) <= {
        name for name, ms in fast.items() if ms <= found["reference"]["measured_latency_ms"]
    }

    recipe = finished / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("learning_rate = 0.01", "learning_rate = 0.02"))
    assert "reference is stale: train.learning_rate" in hwnas("status", finished).out
    recipe.write_text(recipe.read_text().replace("learning_rate = 0.02", "learning_rate = 0.01"))

    out = tmp_path / "model"
    assert hwnas("export", finished, "--pick", "reference", "--out", out).status == 0
    assert Bundle.load(out).description["id"] == bundle.description["id"]


@pytest.mark.slow
def test_reference_is_as_wide_as_the_limits_allow_and_has_its_own_minutes(
    hwnas: Command, quick_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    options = (
        "deploy.reference=true", "objective.1.limit=500_000", "deploy.reference_minutes=0.001"
    )  # fmt: skip
    settings = [part for option in options for part in ("--set", option)]
    answer = hwnas("search", quick_recipe, "--run", run, "--json", *settings)
    reference = json.loads(answer.out)["reference"]
    assert reference["architecture"]["width"] == 0.5
    assert 250_000 < reference["params"] <= 500_000
    assert reference["limit_state"] == "kept"

    answer = hwnas("resume", run, "--set", "deploy.reference_minutes=0.002", "--json")
    assert json.loads(answer.out)["reference"]["bundle"] == "reference"
    refused = hwnas("resume", run, "--set", "deploy.reference_minutes=0")
    assert refused.status == 2
    assert "deploy.reference_minutes is 0.0; expected a number above 0" in refused.err


@pytest.mark.slow
def test_reference_is_trained_beside_the_search(
    hwnas: Command, quick_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    options = (
        "search.evaluator=train", "search.workers=2", "search.trials=4", "train.epochs=2",
        "deploy.reference=true", "deploy.reference_minutes=0.15",
    )  # fmt: skip
    settings = [part for option in options for part in ("--set", option)]
    answer = hwnas("search", quick_recipe, "--run", run, "--json", *settings)
    assert json.loads(answer.out)["reference"]["bundle"] == "reference"
    stages = json.loads((run / "run.json").read_text())["stages"]
    assert stages["search"]["wall_s"] >= 9
    assert stages["reference"]["wall_s"] < stages["search"]["wall_s"], "its weights are found"
    assert "nothing is left to do" in hwnas("resume", run).err


@pytest.mark.parametrize(("side", "stride"), [(224, 32), (112, 32), (64, 16), (32, 8), (8, 2)])
def test_reference_preset_reduces_the_stride_for_small_images(side: int, stride: int) -> None:
    config = PRESETS["mobilenet-v3-small"]((side, side, 3))
    total = config.stem_stride
    for stage in config.stages:
        total *= stage.stride
    assert total == stride
