"""Search for a target in int8, from the recipe to a bundle that runs the quantised network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwnas.deploy import Bundle
from hwnas.deploy.bundles.model_repository import write_model_repository
from hwnas.deploy.targets.number_format import number_format
from hwnas.recipe import read_recipe
from hwnas.run_folder import RunFolder
from hwnas.search.evaluation.converted import Executed
from hwnas.search.evaluation.scoring import score
from hwnas.stages import RunInputs

Command = Callable[..., Any]

TARGET = "cpu-onnxruntime-int8-b1-t1"
PLAIN = "cpu-onnxruntime-fp32-b1-t1"


@pytest.fixture
def run(hwnas: Command, tiny_recipe: Path, tmp_path: Path) -> Path:
    recipe = tiny_recipe.read_text().replace("cpu-onnxruntime-fp32-b1-t1", TARGET)
    tiny_recipe.write_text(recipe)
    answer = hwnas("search", tiny_recipe, "--run", tmp_path / "int8")
    assert answer.status == 0, answer.err
    return tmp_path / "int8"


def bundles(run: Path) -> list[Bundle]:
    return [Bundle.load(path.parent) for path in sorted(run.glob("bundles/*/bundle.json"))]


@pytest.mark.slow
def test_search_in_int8_ships_quantised_networks(hwnas: Command, run: Path) -> None:
    found = bundles(run)
    assert found
    opened = RunFolder.open(run)
    i = RunInputs.prepare(opened.recipe, opened.recipe_folder)
    for bundle in found:
        bundle.verify()
        first, plain = bundle.artifacts
        assert (first.variant, first.file, plain.file) == ("int8", "model.int8.onnx", "model.onnx")
        shipped = bundle.folder / first.file
        assert (number_format(shipped), number_format(bundle.onnx_file)) == ("int8", "fp32")
        assert [measurement.target for measurement in bundle.measurements] == [TARGET]
        tested = next(m for m in bundle.description["metrics"] if m.get("split") == "test")
        shape = i.space.input_shape(bundle.architecture)
        again = score(Executed(shipped), i.task, i.data.test, shape, "test")
        assert tested["value"] == pytest.approx(again.values["accuracy"], abs=1e-6)
        assert 'InferenceSession("model.int8.onnx")' in (bundle.folder / "README.md").read_text()
    served = write_model_repository(found[0], run / "models")
    assert number_format(served / "1" / "model.onnx") == "int8"
    answer = hwnas("verify", found[0].folder, "--time")
    assert answer.status == 0, answer.err
    assert f"time of {TARGET}, model.int8.onnx" in answer.out
    hwnas("cascade", run, "--target-accuracy", "0.5", "--out", run / "cascade").refused(
        "in fp32, one image at a time"
    )


@pytest.mark.slow
def test_finished_run_searches_a_further_number_format(hwnas: Command, finished: Path) -> None:
    answer = hwnas("specialise", finished, "--target", TARGET)
    assert answer.status == 0, answer.err
    own = {bundle.artifacts[0].variant for bundle in bundles(finished)}
    further = {bundle.artifacts[0].variant for bundle in bundles(finished / "targets" / TARGET)}
    assert (own, further) == ({"fp32"}, {"int8"})
    front = json.loads(hwnas("front", finished, "--target", TARGET, "--json").out)
    assert front
    assert "nothing is left to do" in hwnas("resume", finished).err


def test_search_refuses_targets_in_several_number_formats(
    hwnas: Command, quick_recipe: Path, tmp_path: Path
) -> None:
    several = f'objective.1.targets=["cpu-onnxruntime-fp32-b1-t1", "{TARGET}"]'
    answer = hwnas(
        *("search", quick_recipe, "--run", tmp_path / "run"),
        *("--set", "objective.1.metric=latency_ms", "--set", several),
        *("--set", "objective.1.reduce=worst"),
    )
    answer.refused("the objectives name targets in several number formats, int8, fp32")


@pytest.fixture
def both(hwnas: Command, tiny_recipe: Path, tmp_path: Path) -> Path:
    """Return the folder of a search whose networks ship in int8 or fp32."""
    recipe = tiny_recipe.read_text().replace(
        f'target = "{PLAIN}"', f'targets = ["{PLAIN}", "{TARGET}"]\nreduce = "min"'
    )
    tiny_recipe.write_text(recipe)
    answer = hwnas("search", tiny_recipe, "--run", tmp_path / "both")
    assert answer.status == 0, answer.err
    return tmp_path / "both"


@pytest.mark.slow
def test_search_over_number_formats_ships_each_network_in_its_own(
    hwnas: Command, both: Path
) -> None:
    rows = json.loads(hwnas("front", both, "--json").out)["front"]
    formats = {row["id"]: row["architecture"]["precision.number_format"] for row in rows}
    targets = {"int8": TARGET, "fp32": PLAIN}
    assert {row["id"]: row["target"] for row in rows} == {
        name: targets[each] for name, each in formats.items()
    }
    found = bundles(both)
    assert found
    for bundle in found:
        bundle.verify()
        own = formats[bundle.folder.name]
        assert bundle.artifacts[0].variant == ("int8" if own == "int8" else "fp32")
        assert [each.target for each in bundle.measurements] == [targets[own]]
    assert "target" in hwnas("front", both).out
    assert TARGET in (both / "report.html").read_text()
    assert "nothing is left to do" in hwnas("resume", both).err


@pytest.mark.exhaustive
def test_run_over_number_formats_adds_a_target_in_one(hwnas: Command, both: Path) -> None:
    answer = hwnas("specialise", both, "--target", "cpu-onnxruntime-int8-b2-t1")
    assert answer.status == 0, answer.err
    further = bundles(both / "targets" / "cpu-onnxruntime-int8-b2-t1")
    assert {bundle.artifacts[0].variant for bundle in further} == {"int8"}
    hwnas("cascade", both, "--target-accuracy", "0.5", "--out", both / "cascade").refused(
        "in fp32, one image at a time"
    )


def test_search_over_number_formats_refuses_an_evaluator_of_one(
    hwnas: Command, quick_recipe: Path, tmp_path: Path
) -> None:
    several = f'objective.1.targets=["{PLAIN}", "{TARGET}"]'
    given = "objective.1.metric=latency_ms", several, "objective.1.reduce=min"
    sets = [part for each in (*given, "search.evaluator=grow") for part in ("--set", each)]
    answer = hwnas("search", quick_recipe, "--run", tmp_path / "run", *sets)
    answer.refused("evaluator 'grow' scores all networks in one")


QUANTISED = """
[space]
name = "quantised"
weight_bits = [2, 8]
activation_bits = [4, 8]
sparsity = ["2of4", "dense"]

[space.network]
name = "resnet"
preset = "tiny"

[[objective]]
metric = "weight_bytes"
direction = "minimize"
"""


@pytest.fixture
def bits_recipe(tiny_recipe: Path) -> Path:
    """Return the recipe of a search for networks with bit widths of their own."""
    table = read_recipe(tiny_recipe)[0]
    assert table.space.names == ("mobilenet",)
    text = re.sub(r"(?ms)^\[space\].*?(?=^\[)", "", tiny_recipe.read_text()).replace(PLAIN, TARGET)
    tiny_recipe.write_text(text + QUANTISED)
    return tiny_recipe


@pytest.mark.slow
def test_search_of_bit_widths_ships_networks_as_they_were_trained(
    hwnas: Command, bits_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "bits"
    answer = hwnas(
        *("search", bits_recipe, "--run", run, "--set", "train.sampling=bit-groups"),
        *("--set", "train.teacher=previous", "--set", "train.weight_distribution=0.1"),
        *("--set", "train.quantisation=noise"),
    )
    assert answer.status == 0, answer.err
    opened = RunFolder.open(run)
    i = RunInputs.prepare(opened.recipe, opened.recipe_folder)
    for bundle in bundles(run):
        bundle.verify()
        assert bundle.artifacts[0].variant == "int8"
        counted = {m["name"]: m["value"] for m in bundle.description["metrics"]}
        assert counted["weight_bytes"] == i.space.workload(bundle.architecture).weight_bytes
    rows = json.loads(hwnas("front", run, "--json").out)["front"]
    assert any(name.endswith("weight_bits") for name in rows[0]["architecture"])
    assert "--target cpu-onnxruntime-int8-b8-t1" in answer.out
    hwnas("specialise", run, "--target", PLAIN).refused("ship in int8")
    assert "nothing is left to do" in hwnas("resume", run).err


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        (f"objective.1.target={PLAIN}", "networks of space 'quantised' ship in int8"),
        ("space.weight_bits=[8, 32]", "leave 32 out"),
        ("space.weight_bits=[0, 8]", "expected 1 to 8 bits"),
        ("space.network.name=mobilnet", "did you mean 'mobilenet'"),
    ],
)
def test_search_of_bit_widths_refuses_wrong_settings(
    hwnas: Command, bits_recipe: Path, tmp_path: Path, setting: str, told: str
) -> None:
    hwnas("search", bits_recipe, "--run", tmp_path / "run", "--set", setting).refused(told)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("train.weight_distribution=0.1", "the networks of space 'mobilenet' are not quantised"),
        ("train.weight_distribution=-1", "expected at least 0"),
        ("train.quantisation=noise", "the networks of space 'mobilenet' are not quantised"),
        ("train.quantisation=nois", "train.quantisation is 'nois'; expected 'round' or 'noise'"),
        ("train.sampling=bit-groups", "the networks of space 'mobilenet' have no bit widths"),
    ],
)
def test_training_for_bit_widths_needs_networks_that_have_them(
    hwnas: Command, quick_recipe: Path, tmp_path: Path, setting: str, told: str
) -> None:
    hwnas("search", quick_recipe, "--run", tmp_path / "run", "--set", setting).refused(told)
