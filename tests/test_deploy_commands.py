"""The commands `hwnas sweep` and `hwnas check`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hwnas.deploy import Bundle

TARGET = "cpu-onnxruntime-fp32-b1-t1"
Command = Callable[..., Any]


@pytest.fixture
def bundle(finished: Path) -> Bundle:
    return Bundle.load(min((finished / "bundles").iterdir()))


@pytest.mark.slow
def test_sweep_command_shows_variants_and_writes_the_chosen_bundle(
    hwnas: Command, bundle: Bundle, tmp_path: Path
) -> None:
    place = tmp_path / "ready"
    options = ("--target", TARGET, "--variants", "fp32", "--variants", "int8", "--max-loss", 1)
    answer = hwnas("sweep", bundle.folder, *options, "--out", place)
    assert answer.status == 0, answer.err
    assert "cpu-onnxruntime-int8-b1-t1" in answer.out
    assert "(measured)" in answer.out
    assert "test images" in answer.out
    again = hwnas("sweep", bundle.folder, *options, "--out", place)
    assert again.status == 2
    assert "exists already" in again.err
    for command in ("verify", "run"):
        image = [bundle.folder.parents[1] / "example.png"] if command == "run" else []
        assert hwnas(command, place, *image).status == 0
    found = json.loads(hwnas("sweep", bundle.onnx_file, "--target", TARGET, "--json").out)
    assert {each["variant"] for each in found["contenders"]} == {"fp32", "fp16", "int8"}


@pytest.mark.slow
def test_check_command_exits_with_1_if_a_limit_is_broken(
    hwnas: Command, bundle: Bundle, tmp_path: Path
) -> None:
    budget, xml = tmp_path / "budget.toml", tmp_path / "junit.xml"
    budget.write_text(f'target = "{TARGET}"\n[limits]\naccuracy = 0.9999\nsize_bytes = 1e9\n')
    answer = hwnas("check", bundle.folder, "--budget", budget, "--junit", xml)
    assert answer.status == 1, answer.err
    assert "accuracy (evaluated)" in answer.out
    assert "✗ accuracy is" in answer.out
    suite = ElementTree.parse(xml).getroot()[0]
    assert suite.attrib["failures"] == "1"
    cases = [case.attrib["name"] for case in suite if case.find("failure") is not None]
    assert cases == ["accuracy"]


@pytest.mark.slow
def test_check_command_exits_with_0_if_all_limits_are_kept(
    hwnas: Command, bundle: Bundle, tmp_path: Path
) -> None:
    budget = tmp_path / "budget.toml"
    budget.write_text(f'target = "{TARGET}"\n[limits]\naccuracy = 0\nsize_bytes = 1e9\n')
    answer = hwnas("check", bundle.folder, "--budget", budget, "--json")
    assert answer.status == 0, answer.err
    assert all(verdict["ok"] for verdict in json.loads(answer.out))


def test_check_command_exits_with_2_if_the_budget_cannot_be_read(
    hwnas: Command, bundle: Bundle, tmp_path: Path
) -> None:
    answer = hwnas("check", bundle.folder, "--budget", tmp_path / "nowhere.toml")
    assert answer.status == 2
    assert answer.err.startswith("error: cannot read the budget")
