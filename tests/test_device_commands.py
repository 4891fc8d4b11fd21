"""Commands for devices: calibrate, predict, explain, devices; and their refusals."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.deploy import export_onnx
from hwnas.experiment import space_of
from hwnas.predictors.devices.spec_sheet import EXAMPLE
from hwnas.search_spaces import mobilenet

TARGET = "cpu-onnxruntime-fp32-b1-t1"
MEMORY = "peak_memory_bytes"
Command = Callable[..., Any]
SPACE = mobilenet((8, 8, 1), 10)
TINY = ("--space", "mobilenet", "--image", "8x8x1", "--classes", "10")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    network = SPACE.smallest()
    export_onnx(SPACE.build(network), SPACE.input_shape(network), path, traceable=True)
    return path


@pytest.fixture
def architecture(tmp_path: Path) -> Path:
    path = tmp_path / "arch.json"
    path.write_text(json.dumps(SPACE.smallest().to_json()))
    return path


def read(answer: Any) -> Any:
    assert answer.status == 0, answer.err
    return json.loads(answer.out)


def table(folder: Path, count: int = 4, factor: float = 1.0) -> Path:
    lines = ["network,latency_ms"]
    for seed in range(count):
        network = SPACE.sample(random.Random(seed))
        (folder / f"{seed}.json").write_text(json.dumps(network.to_json()))
        lines.append(f"{seed}.json,{factor * (0.02 + 1e-7 * SPACE.workload(network).macs)}")
    path = folder / "costs.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.slow
def test_calibrate_command_measures_a_device_that_predict_then_knows(
    hwnas: Command, model: Path, architecture: Path, home: Path
) -> None:
    answer = hwnas("calibrate", "--target", TARGET, *TINY, "--samples", 6)
    assert answer.status == 0, answer.err
    lines = answer.out.splitlines()
    assert sum("  measured " in line for line in lines) == 6
    assert "predicted" in lines[5]
    assert "expected error" in lines[5]
    assert (
        lines[-2]
        == f"{TARGET}: latency_ms of 6 networks, held-out error "
        + (lines[-2].partition("held-out error ")[2])
    )
    assert (home / "devices" / TARGET / "latency_ms" / "profile.json").is_file()
    [found] = read(hwnas("predict", model, "--target", TARGET, "--json"))
    assert found["metric"] == "latency_ms"
    assert found["kind"] == "predicted"
    assert found["samples"] == 6
    assert 0 < found["lower90"] < found["mean"] < found["upper90"]
    by_arch = read(hwnas("predict", *TINY, "--arch", architecture, "--target", TARGET, "--json"))
    assert by_arch[0]["mean"] == pytest.approx(found["mean"], rel=0.02)
    assert TARGET in hwnas("predict", model, "--target", TARGET).out
    assert f"{TARGET}: latency_ms" in hwnas("devices", "--show", TARGET).out
    shown = read(hwnas("devices", "--show", TARGET, "--json"))
    assert len(shown["networks"]) == 6


@pytest.mark.slow
def test_predict_and_explain_commands_print_targets_and_operators(
    hwnas: Command, model: Path
) -> None:
    other = "cpu-openvino-fp32-b1-t1"
    found = read(hwnas("predict", model, "--target", TARGET, "--target", other, "--json"))
    assert [each["target"] for each in found] == [TARGET, other]
    answer = hwnas("explain", model, "--target", TARGET, "--top", 3)
    assert "3 costliest of" in answer.out
    assert "profiled" in answer.out
    operators = read(hwnas("explain", model, "--target", TARGET, "--top", 3, "--json"))
    assert len(operators) == 3
    assert all(each["predicted"] > 0 for each in operators)


@pytest.mark.slow
def test_calibrate_command_exports_networks_and_imports_their_latencies(
    hwnas: Command, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    answer = hwnas("calibrate", "--target", "my-phone", *TINY, "--samples", 3, "--export", out)
    assert f"hwnas calibrate --target my-phone --from {out}/measurements.csv" in answer.out
    lines = (out / "measurements.csv").read_text().splitlines()
    filled = [lines[0], *(f"{line}{0.1 * i}" for i, line in enumerate(lines[1:], start=1))]
    (out / "measurements.csv").write_text("\n".join(filled))
    assert (
        hwnas("calibrate", "--target", "my-phone", "--from", out / "measurements.csv").status == 0
    )
    [found] = read(hwnas("predict", model, "--target", "my-phone", "--json"))
    assert found["samples"] == 3
    known = {each["device"]: each for each in read(hwnas("devices", "--json"))["known"]}
    assert known["my-phone"]["origin"] == "store"
    assert known[TARGET]["origin"] == "shipped"
    assert known[TARGET]["networks"] >= 150
    assert "my-phone" in hwnas("devices").out


def test_predict_command_predicts_from_the_example_of_a_spec_sheet(
    hwnas: Command, model: Path, tmp_path: Path
) -> None:
    board = tmp_path / "board.toml"
    board.write_text(hwnas("predict", "--example-spec").out)
    [found] = read(hwnas("predict", model, "--spec", board, "--json"))
    assert (found["target"], found["samples"], found["metric"]) == ("my-board", 0, "latency_ms")
    assert found["upper90"] > 4 * found["lower90"] > 0
    both = read(hwnas("predict", model, "--spec", board, "--target", TARGET, "--json"))
    assert [each["target"] for each in both] == ["my-board", TARGET]
    text = hwnas("predict", model, "--spec", board).out
    assert "from the spec sheet alone, no measurement" in text


def test_calibrate_command_keeps_a_spec_sheet_that_predict_then_uses(
    hwnas: Command, model: Path, tmp_path: Path
) -> None:
    board = tmp_path / "board.toml"
    board.write_text(EXAMPLE)
    given = ("--from", table(tmp_path), *TINY)
    assert hwnas("calibrate", "--target", "my-phone", *given).status == 0
    answer = hwnas("calibrate", "--target", "my-phone", "--spec", board)
    assert answer.out.startswith("my-phone: spec sheet kept in ")
    [found] = read(hwnas("predict", model, "--spec", board, "--json"))
    [measured] = read(hwnas("predict", model, "--target", "my-phone", "--json"))
    assert "1 that you calibrated (my-phone)" in found["notes"][1]
    assert found["mean"] == pytest.approx(measured["mean"], rel=1e-3)


@pytest.mark.slow
def test_predict_command_uses_a_fingerprint_for_an_unmeasured_target(
    hwnas: Command, model: Path
) -> None:
    new = "cpu-onnxruntime-fp32-b3-t1"
    hwnas("predict", model, "--target", new).refused("not known", "hwnas calibrate")
    [found] = read(hwnas("predict", model, "--target", new, "--fingerprint", "--json"))
    assert found["samples"] == 0
    assert found["target"] == new
    assert 0 < found["lower90"] < found["mean"] < found["upper90"]
    assert "no network was measured" in found["notes"][0]


@pytest.mark.slow
def test_calibrate_command_measures_peak_memory_that_predict_then_knows(
    hwnas: Command, model: Path, architecture: Path
) -> None:
    answer = hwnas("calibrate", "--target", TARGET, *TINY, "--metric", MEMORY, "--samples", 3)
    assert answer.status == 0, answer.err
    assert answer.out.count(" MB\n") == 3
    found = read(hwnas("predict", model, "--target", TARGET, "--json"))
    assert [each["metric"] for each in found] == ["latency_ms", MEMORY]
    assert found[1]["samples"] == 3
    by_arch = read(hwnas("predict", *TINY, "--arch", architecture, "--target", TARGET, "--json"))
    assert by_arch[1]["mean"] == pytest.approx(found[1]["mean"], rel=0.01)
    other = "cpu-openvino-fp32-b1-t1"
    hwnas("calibrate", "--target", other, *TINY, "--memory").refused(
        "target of onnxruntime"
    )  # the older spelling


def test_predict_gemm_command_refuses_untimed_targets_and_invalid_sizes(hwnas: Command) -> None:
    sizes = ("--m", 64, "--n", 256, "--k", 128)
    hwnas("predict", "gemm", *sizes, "--target", TARGET).refused(
        "no matrix products were timed", f"hwnas calibrate --target {TARGET} --gemm"
    )
    hwnas("predict", "gemm", "--m", 64, "--target", TARGET).refused("--m, --n and --k")
    hwnas("predict", "gemm", "--m", 0, "--n", 1, "--k", 1, "--target", TARGET).refused("at least 1")
    hwnas("predict", "gemm", *sizes, "--tile", "64x64", "--target", TARGET).refused("64x64x32x4x3")
    hwnas("predict", "net.onnx", "--tile", "64x64x32x4x3", "--target", TARGET).refused("add gemm")


@pytest.mark.slow
def test_predict_gemm_command_works_after_calibration(hwnas: Command) -> None:
    assert "120 products" in hwnas("calibrate", "--target", TARGET, "--gemm").out
    sizes = ("--m", 64, "--n", 256, "--k", 128)
    [found, *_] = read(hwnas("predict", "gemm", *sizes, "--target", TARGET, "--json"))
    assert 0 < found["lower90"] < found["mean"] < found["upper90"] < 5


def test_calibrate_command_writes_to_the_given_store(
    hwnas: Command, tmp_path: Path, home: Path
) -> None:
    given = ("--from", table(tmp_path), *TINY, "--store", tmp_path / "mine")
    assert hwnas("calibrate", "--target", "my-phone", *given).status == 0
    assert (tmp_path / "mine" / "my-phone").is_dir()
    assert not home.exists()


def test_predict_command_accepts_a_run_as_space(
    hwnas: Command, finished: Path, finished_recipe: Path
) -> None:
    space = space_of(finished)
    assert space.fingerprint == space_of(finished_recipe).fingerprint
    arch = finished.parent / "smallest.json"
    arch.write_text(json.dumps(space.smallest().to_json()))
    found = read(
        hwnas("predict", "--space", finished, "--arch", arch, "--target", TARGET, "--json")
    )
    assert found[0]["mean"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["calibrate", "--target", "cpu-onnxruntim-fp32-b1-t1", *TINY], ["closest target is"]),
        (["calibrate", "--target", TARGET], ["give --space", "--from"]),
        (["calibrate", "--target", TARGET, *TINY, "--samples", "2"], ["samples is 2", "least 3"]),
        (["calibrate", "--target", TARGET, *TINY, "--until-error", "x"], ["at most 100%, e.g. 5%"]),
        (["calibrate", "--target", TARGET, "--space", "mobilnet"], ["did you mean 'mobilenet'"]),
        (["calibrate", "--target", TARGET, "--space", "mobilenet", "--image", "8"], ["--image is"]),
        (
            ["calibrate", "--target", TARGET, *TINY, "--memory", "--energy"],
            ["one of --metric"],
        ),
        (["calibrate", "--target", TARGET, *TINY, "--metric", "latency"], ["mean 'latency_ms'"]),
        (["calibrate", "--target", TARGET, "--gemm", "--metric", MEMORY], ["leave --metric out"]),
        (
            ["calibrate", "--target", TARGET, "--gemm", "--from", "costs.csv"],
            ["one of --from"],
        ),
        (
            ["calibrate", "--target", TARGET, *TINY, "--metric", MEMORY, "--until-error", "5%"],
            ["the error of peak_memory_bytes is not known"],
        ),
        (["calibrate", "--target", "a/b", "--from", "costs.csv", *TINY], ["a device's name"]),
        (["calibrate", "--target", "x", "--from", "none.csv"], ["there is no table"]),
        (["calibrate", "--target", "x", "--from", "seconds.csv", *TINY], ["are these seconds?"]),
        (["calibrate", "--target", "x", "--from", "costs.csv"], ["name its space with --space"]),
        (["predict", "none.onnx", "--target", TARGET], ["there is no ONNX file"]),
        (["predict", "costs.csv", "--target", TARGET], ["is not an ONNX file"]),
        (["predict", "--target", TARGET], ["give either MODEL.onnx, or --space and --arch"]),
        (["predict", "model.onnx", "--target", "my-fone"], ["not known", "hwnas calibrate"]),
        (["predict", "model.onnx", "--target", TARGET, "--input", "8xx"], ["--input is '8xx'"]),
        (["predict", "--space", "mobilenet", "--arch", "0.json", "--target", TARGET], ["space"]),
        (["predict", "model.onnx"], ["give --target", "or --spec"]),
        (["predict", "model.onnx", "--spec", "none.toml"], ["none.toml cannot be read"]),
        (["predict", "model.onnx", "--spec", "wrong.toml"], ["did you mean 'clock_ghz'"]),
        (["predict", "gemm", "--spec", "board.toml"], ["--spec does not predict a gemm"]),
        (["calibrate", "--target", "x", "--spec", "board.toml"], ["give --space", "--from"]),
        (
            ["calibrate", "--target", "x", *TINY, "--spec", "board.toml", "--export", "out"],
            ["leave it out"],
        ),
        (["calibrate", "--target", "x", *TINY, "--spec", "wrong.toml"], ["clok_ghz"]),
        (["explain", "model.onnx", "--target", "my-fone"], ["no latency_ms of device 'my-fone'"]),
        (["devices", "--show", "my-fone"], ["my-fone"]),
    ],
)
def test_device_commands_refuse_bad_input_in_one_line(
    hwnas: Command,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    parts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path, factor=1e-3).rename("seconds.csv")
    table(tmp_path)
    Path("model.onnx").write_bytes(model.read_bytes())
    Path("board.toml").write_text(EXAMPLE)
    Path("wrong.toml").write_text(EXAMPLE.replace("clock_ghz", "clok_ghz"))
    hwnas(*options).refused(*parts)
    assert not (tmp_path / "home").exists(), "nothing is left behind"


def test_predict_command_requires_dynamic_input_sizes(hwnas: Command, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    sizes = ["n", 3, "height", "width"]
    made = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "open",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes)],
    )
    path = tmp_path / "open.onnx"
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)]), path)
    hwnas("predict", path, "--target", TARGET).refused("size 2 of input x is dynamic", "--input")
    found = read(hwnas("predict", path, "--target", TARGET, "--input", "3x32x32", "--json"))
    assert np.isfinite(found[0]["mean"])
