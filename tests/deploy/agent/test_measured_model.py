"""The ONNX files that a device is asked to measure."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

from hwnas.deploy.agent.measured_model import check_model
from hwnas.errors import ArtifactError


@pytest.mark.parametrize("where", ["initializer", "attribute", "body"])
def test_check_model_refuses_external_weights_in_any_graph(where: str, tmp_path: Path) -> None:
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../../etc/passwd"
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    inner = helper.make_graph([constant], "inner", [], [])
    nodes = {
        "initializer": [helper.make_node("Relu", ["x"], ["y"])],
        "attribute": [constant],
        "body": [helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)],
    }[where]
    graph = helper.make_graph(nodes, "g", [], [], [tensor] if where == "initializer" else [])
    path = tmp_path / "outside.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(ArtifactError, match="in other files"):
        check_model(path)
