"""LSTM and GRU nodes in PyTorch, compared with ONNX Runtime."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from hwnas.deploy.matching import MatchedNetwork, matched
from hwnas.deploy.onnx.module import OnnxModule
from hwnas.errors import ArtifactError

STEPS, IMAGES, INPUTS, CHANNELS = 5, 3, 4, 6
GATES = {"LSTM": 4, "GRU": 3}


def floats(seed: int, *shape: int) -> np.ndarray:
    return 0.5 * np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def written(path: Path, kind: str, output: int, states: bool = True, **attributes: object) -> Path:
    """Write a file with one node, whose output of the given place is that of the file."""
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    gates = GATES[kind] * CHANNELS
    constants = {
        "w": floats(0, directions, gates, INPUTS),
        "r": floats(1, directions, gates, CHANNELS),
        "b": floats(2, directions, 2 * gates),
    }
    first = ("h", "c") if kind == "LSTM" else ("h",)
    if states:
        constants |= {n: floats(3, directions, IMAGES, CHANNELS) for n in first}
    names = ["x", "w", "r", "b", "", *(first if states else ())]
    outputs = ["y", "last", "state"][: 3 if kind == "LSTM" else 2]
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["images"], ["x"], perm=[1, 0, 2]),
            helper.make_node(kind, names, outputs, hidden_size=CHANNELS, **attributes),
        ],
        "one",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", STEPS, INPUTS])],
        [helper.make_tensor_value_info(outputs[output], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = helper.make_opsetid("", 20)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("kind", "output"), [("LSTM", 0), ("LSTM", 1), ("LSTM", 2), ("GRU", 0), ("GRU", 1)]
)
def test_recurrent_nodes_agree_with_onnx_runtime(
    kind: str, output: int, direction: str, tmp_path: Path
) -> None:
    given = {"linear_before_reset": 1} if kind == "GRU" else {}
    states = direction != "reverse"  # zeros if not given
    path = written(tmp_path / "one.onnx", kind, output, states, direction=direction, **given)
    images = floats(9, IMAGES, STEPS, INPUTS)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        outputs = OnnxModule.load(path)(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(outputs, session.run(None, {"images": images})[0], atol=1e-5)


def test_recurrent_nodes_without_their_first_outputs_keep_apart(tmp_path: Path) -> None:
    """Some exporters give no name to outputs that nothing reads."""
    path = written(tmp_path / "one.onnx", "LSTM", 1)
    model = onnx.load(path)
    layer = model.graph.node[1]
    layer.output[0], layer.output[2] = "", ""
    again = model.graph.node.add()
    again.CopyFrom(layer)
    again.output[1] = "second"
    total = model.graph.node.add(op_type="Add", input=["last", "second"], output=["total"])
    model.graph.output[0].name = total.output[0]
    onnx.save(model, path)
    images = floats(9, IMAGES, STEPS, INPUTS)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"images": images})[0]
    source = OnnxModule.load(path)
    with torch.no_grad():
        outputs = source(torch.from_numpy(images))
        matched_outputs = MatchedNetwork(
            matched(source, IMAGES, torch.float32), torch.float32, torch.device("cpu")
        )(torch.from_numpy(images))
    np.testing.assert_allclose(outputs.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(matched_outputs.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "attributes", "reason"),
    [
        ("GRU", {}, "GRU with a reset gate before the product (linear_before_reset = 0)"),
        ("LSTM", {"clip": 1.0}, "LSTM with lengths of sequences, batches first (layout = 1) or"),
        ("LSTM", {"input_forget": 1}, "LSTM with peepholes or coupled gates is not supported"),
        ("LSTM", {"activations": ["Relu", "Tanh", "Tanh"]}, "LSTM with activations Relu, Tanh, "),
    ],
)
def test_recurrent_nodes_with_other_options_than_pytorch_are_refused(
    kind: str, attributes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "one.onnx", kind, 0, **attributes)
    with pytest.raises(ArtifactError, match=re.escape(reason)):
        OnnxModule.load(path)(torch.zeros(IMAGES, STEPS, INPUTS))
