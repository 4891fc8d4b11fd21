"""Search of networks with early exits, from the recipe to measured bundles."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from hwnas.deploy import Bundle
from hwnas.deploy.bundles.converting import convert_bundle
from hwnas.deploy.onnx.early_exit import early_exit_of
from hwnas.deploy.onnx.workload import read_workload
from hwnas.run_folder import RunFolder
from hwnas.search.evaluation.converted import Executed
from hwnas.search.evaluation.scoring import score
from hwnas.stages import RunInputs

Command = Callable[..., Any]

TARGET = "cpu-onnxruntime-fp32-b1-t1"
SPACE = """
[space]
name = "early-exit"
exit_share = [0.3, 0.6]

[space.network]
name = "resnet"
preset = "tiny"
resolution = [8]

[[objective]]
metric = "macs"
direction = "minimize"
"""


@pytest.fixture
def exit_recipe(tiny_recipe: Path) -> Path:
    """Return the recipe of a search for networks that all have an exit."""
    text = re.sub(r"(?ms)^\[space\].*?(?=^\[)", "", tiny_recipe.read_text())
    tiny_recipe.write_text(text + SPACE)
    return tiny_recipe


def bundles(run: Path) -> list[Bundle]:
    return [Bundle.load(path.parent) for path in sorted(run.glob("bundles/*/bundle.json"))]


@pytest.mark.slow
def test_search_of_early_exits_ships_networks_with_expected_costs(
    hwnas: Command, exit_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "exits"
    answer = hwnas("search", exit_recipe, "--run", run)
    assert answer.status == 0, answer.err
    opened = RunFolder.open(run)
    i = RunInputs.prepare(opened.recipe, opened.recipe_folder)
    found = bundles(run)
    assert found
    for bundle in found:
        bundle.verify()
        share = float(bundle.architecture.as_dict()["exit_share"])
        noted = early_exit_of(bundle.onnx_file)
        assert noted is not None
        assert noted.share == pytest.approx(share, abs=1 / len(i.data.validation))
        [measured] = bundle.measurements
        assert float(measured.settings["early_exit_share"]) == pytest.approx(share, abs=0.01)
        early, whole = (
            float(measured.settings[name]) for name in ("early_exit_ms", "whole_network_ms")
        )
        assert early < measured.latency_ms < whole
        assert "leave the network at an early exit" in (bundle.folder / "README.md").read_text()
        metrics = {(m["name"], m.get("split")): m["value"] for m in bundle.description["metrics"]}
        assert metrics["macs", None] == i.space.workload(bundle.architecture).macs
        assert read_workload(bundle.onnx_file).workload.macs == metrics["macs", None]
        shape = i.space.input_shape(bundle.architecture)
        again = score(Executed(bundle.onnx_file), i.task, i.data.test, shape, "test")
        assert metrics["accuracy", "test"] == pytest.approx(again.values["accuracy"], abs=1e-6)
    refuse_what_needs_whole_networks(hwnas, run, found[0])
    copied = Bundle.load(Path(shutil.copytree(found[0].folder, tmp_path / "copied")))
    [converted] = convert_bundle(copied, ["onnx-opset17"]).converted
    assert "If" not in {n.op_type for n in onnx.load(copied.folder / converted.main).graph.node}
    assert "nothing is left to do" in hwnas("resume", run).err


def refuse_what_needs_whole_networks(hwnas: Command, run: Path, bundle: Bundle) -> None:
    """Check the commands that cannot skip a part of a network."""
    hwnas("sweep", bundle.folder, "--target", "cpu-onnxruntime-b1-t1").refused(
        "has an early exit", "sweep a network with exit_share 0"
    )
    hwnas("specialise", run, "--target", "cpu-onnxruntime-int8-b1-t1").refused(
        "early exits save nothing there"
    )
    out = json.loads(hwnas("predict", bundle.onnx_file, "--target", TARGET, "--json").out)
    assert any("leave at the early exit" in note for each in out for note in each["notes"])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("objective.1.target=cpu-openvino-fp32-b1-t1", "early exits save nothing there"),
        ("objective.1.target=cpu-onnxruntime-int8-b1-t1", "onnxruntime and fp32"),
        ("space.exit_share=[0, 1]", "expected shares from 0"),
        ("space.places=none", "places"),
        ('space.network={name="nasbench201"}', "does not list its networks as rows of blocks"),
    ],
)
def test_search_of_early_exits_refuses_what_does_not_suit_it(
    hwnas: Command, exit_recipe: Path, tmp_path: Path, setting: str, told: str
) -> None:
    hwnas("search", exit_recipe, "--run", tmp_path / "run", "--set", setting).refused(told)


def test_early_exits_are_for_one_class_per_image(
    hwnas: Command, exit_recipe: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    images, values = rng.integers(0, 256, (300, 8, 8), np.uint8), rng.random((300, 3), np.float32)
    arrays = {"x_train": images, "y_train": values, "x_test": images, "y_test": values}
    np.savez(tmp_path / "values.npz", **arrays)
    answer = hwnas(
        *("search", exit_recipe, "--run", tmp_path / "run", "--set", "task.name=regression"),
        *("--set", f"data.source=npz:{tmp_path / 'values.npz'}"),
    )
    answer.refused("leave early by their class probability", "task regression")
