from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hwnas.deploy import RUNTIMES, Device, Export, Target, measure
from hwnas.errors import ArtifactError

RUNTIME = RUNTIMES["onnxruntime"]
ONE = Target(Device("cpu", "onnxruntime"))


def identity(
    path: Path, shape: list[object], kind: int = TensorProto.FLOAT, inputs: int = 1
) -> Path:
    names = [f"x{i}" for i in range(inputs)]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x0"], ["y"])],
        "identity",
        [helper.make_tensor_value_info(name, kind, shape) for name in names],
        [helper.make_tensor_value_info("y", kind, shape)],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def test_session_runs_any_batch(exported: Export, tmp_path: Path) -> None:
    session = RUNTIME.load(RUNTIME.prepare(exported.path, ONE, tmp_path), ONE)
    assert session.input_shape == (1, 8, 8)
    images = np.random.default_rng(0).standard_normal((4, 1, 8, 8), dtype=np.float32)
    together = session.run(images)
    assert together.shape == (4, 10)
    apart = np.concatenate([session.run(images[i : i + 1]) for i in range(4)])
    np.testing.assert_allclose(together, apart, atol=1e-5 * np.abs(apart).max())


def test_session_reports_settings_that_change_latency(exported: Export) -> None:
    two = Target(Device("cpu", "onnxruntime", 1, 2))
    settings = RUNTIME.load(exported.path, two).settings
    assert settings["graph_optimization_level"] == "ORT_ENABLE_ALL"
    assert settings["allow_spinning"] == "0"
    assert settings["intra_op_threads"] == "2"


@pytest.mark.parametrize("threads", [1, 2])
def test_session_cpu_clock_counts_work(exported: Export, threads: int) -> None:
    session = RUNTIME.load(exported.path, Target(Device("cpu", "onnxruntime", 64, threads)))
    images = np.zeros((64, *session.input_shape), np.float32)
    before = session.cpu_clock()
    for _ in range(10):
        session.run(images)
    assert session.cpu_clock() > before


@pytest.mark.parametrize("kept", [0, 1, 100, 0.3, 0.9, 0.999])
def test_runtime_refuses_truncated_files_without_other_output(
    exported: Export, tmp_path: Path, kept: float, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = exported.path.read_bytes()
    path = tmp_path / "half.onnx"
    path.write_bytes(whole[: int(kept if kept >= 1 else kept * len(whole))])
    with pytest.raises(ArtifactError, match=r"half\.onnx is not an ONNX file") as raised:
        RUNTIME.load(path, ONE)
    assert len(str(raised.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "")


def test_runtime_refuses_missing_files(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.onnx", tmp_path):
        with pytest.raises(ArtifactError, match="there is no ONNX file"):
            RUNTIME.load(path, ONE)


def test_runtime_refuses_inputs_other_than_one_image_batch(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ArtifactError, match="expected one float32 batch"):
        RUNTIME.load(identity(path, ["n", 3], inputs=2), ONE)
    with pytest.raises(ArtifactError, match="expected one float32 batch"):
        RUNTIME.load(identity(path, ["n", 3], TensorProto.INT64), ONE)
    with pytest.raises(ArtifactError, match="must be fixed"):
        RUNTIME.load(identity(path, ["n", 3, "h", "w"]), ONE)
    with pytest.raises(ArtifactError, match="batches of 4, but the target has a batch of 1"):
        RUNTIME.load(identity(path, [4, 3, 8, 8]), ONE)
    four = Target(Device("cpu", "onnxruntime", 4))
    assert RUNTIME.load(identity(path, [4, 3, 8, 8]), four).input_shape == (3, 8, 8)


def test_session_names_the_file_in_a_one_line_error(tmp_path: Path) -> None:
    images, outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"
    )
    sizes = helper.make_tensor("sizes", TensorProto.INT64, [2], [1, 4])
    node = helper.make_node("Reshape", ["x", "sizes"], ["y"])
    graph = helper.make_graph([node], "one", [images], [outputs], [sizes])
    opset = helper.make_opsetid("", 17)
    path = tmp_path / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    session = RUNTIME.load(path, ONE)
    assert session.run(np.zeros((1, 4), np.float32)).shape == (1, 4)
    with pytest.raises(ArtifactError, match=r"one\.onnx cannot be run: \[ONNXRuntimeError\]") as e:
        session.run(np.zeros((3, 4), np.float32))
    assert len(str(e.value).splitlines()) == 1


def test_measure_refuses_inputs_that_are_too_large(tmp_path: Path) -> None:
    path = identity(tmp_path / "huge.onnx", ["n", 2**40, 2**20])
    with pytest.raises(ArtifactError, match="which are too large"):
        measure({"huge": path}, ONE)
