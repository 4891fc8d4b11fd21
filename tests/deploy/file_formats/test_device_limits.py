"""Limits of devices that read only older or smaller ONNX files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import hwnas as package
from hwnas.deploy import Bundle
from hwnas.deploy.file_formats.device_limits import SHIPPED, DeviceLimits, device_limits
from hwnas.errors import ArtifactError, ConfigError

Command = Callable[..., Any]


@pytest.fixture
def bundle(packed: Bundle, tmp_path: Path) -> Bundle:
    return Bundle.load(Path(shutil.copytree(packed.folder, tmp_path / "bundle")))


def written(path: Path, kind: str, opset: int) -> Path:
    """Write a file with one operator, which comes from the layer ``head.act``."""
    node = helper.make_node(kind, ["x"], ["y"], name=f"head.act/{kind}")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8]) for n in "xy"]
    graph = helper.make_graph([node], "one", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), path)
    return path


@pytest.mark.parametrize(
    ("limits", "opset", "problem"),
    [
        (DeviceLimits("d", 17), 17, None),
        (DeviceLimits("d", 17), 18, "a.onnx has opset 18, newer than 17; add the format onnx-ops"),
        (DeviceLimits("d", 16), 18, "newer than 16; add the format onnx-opset15"),
        (DeviceLimits("d", 9), 18, "newer than 9; no format of hwnas is old enough"),
        (DeviceLimits("d", without=("Relu",)), 18, "has the operator Relu in head.act, which it"),
        (DeviceLimits("d", operators=("Conv",)), 18, "has the operator Relu in head.act"),
        (DeviceLimits("d", operators=("Conv", "Relu")), 18, None),
    ],
)
def test_problem_names_opset_or_operator_and_what_to_do(
    limits: DeviceLimits, opset: int, problem: str | None, tmp_path: Path
) -> None:
    found = limits.problem(written(tmp_path / "a.onnx", "Relu", opset))
    assert (found is None) == (problem is None)
    assert problem is None or problem in str(found)


@pytest.mark.parametrize("name", SHIPPED)
def test_bundle_is_readable_after_the_advice(name: str, bundle: Bundle) -> None:
    """Of any release, either at once or with the format that the message names."""
    try:
        package.convert(bundle, [], limits=name)
    except ArtifactError as error:
        format_ = str(error).rpartition("add the format ")[2]
        assert [
            each.format for each in package.convert(bundle, format_, limits=name).converted
        ] == [format_]


def test_bundle_that_a_device_cannot_read_is_unchanged(
    bundle: Bundle, hwnas: Command, tmp_path: Path
) -> None:
    before = sorted(path.name for path in bundle.folder.iterdir())
    limits = tmp_path / "old.toml"
    limits.write_text('name = "an old board"\nopset = 17\nwithout = ["Conv"]\n')
    told = "an old board cannot read the network: model.opset17.onnx has the operator Conv in "
    hwnas("convert", bundle.folder, "--to", "onnx-opset17", "--for", limits).refused(told)
    assert sorted(path.name for path in bundle.folder.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('opset = "17"', "opset is '17'; expected a whole number"),
        ("opset = true", "opset is True; expected a whole number"),
        ("opset = 0", "have opset 0; expected >= 1"),
        ("without = [1]", r"without is \[1\]; expected a list of texts"),
        ("opsets = 17", "opsets is not a key of device limits; did you mean 'opset'"),
        ('name = "x"', "the limits of x limit nothing"),
        ("opset =", "cannot read the device limits"),
    ],
)
def test_wrong_file_of_limits_is_refused(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told) as raised:
        device_limits(str(path))
    assert "\n" not in str(raised.value)


def test_unknown_device_names_the_closest() -> None:
    with pytest.raises(ConfigError, match=r"'tensorrt-8'; did you mean 'tensorrt-8\.6'.* TOML"):
        device_limits("tensorrt-8")
    with pytest.raises(ConfigError, match=r"cannot read the device limits missing\.toml"):
        device_limits("missing.toml")
