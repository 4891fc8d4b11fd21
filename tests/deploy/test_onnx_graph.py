from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import pytest
from onnx import TensorProto, helper

from hwnas.deploy import Bundle
from hwnas.deploy.onnx_graph import check_graph
from hwnas.errors import ArtifactError

value = helper.make_tensor_value_info


def nested(depth: int) -> Any:
    node = helper.make_node("Identity", ["x"], ["y"])
    for _ in range(depth):
        branch = helper.make_graph([node], "branch", [], [value("y", TensorProto.FLOAT, None)])
        node = helper.make_node("If", ["go"], ["y"], then_branch=branch, else_branch=branch)
    return node


def written(path: Path, node: Any, **more: Any) -> Path:
    images, outputs = (value(name, TensorProto.FLOAT, [1, 1, 8, 8]) for name in "xy")
    graph = helper.make_graph([node], "g", [images, value("go", TensorProto.BOOL, [])], [outputs])
    onnx.save(helper.make_model(graph, **more), path)
    return path


def endless() -> Any:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, [])],
        [value("on", TensorProto.BOOL, [])],
    )
    return helper.make_node("Loop", ["", "go"], [], body=body)


def in_a_branch(node: Any) -> Any:
    branch = helper.make_graph([node], "branch", [], [value("y", TensorProto.FLOAT, None)])
    return helper.make_node("If", ["go"], ["y"], then_branch=branch, else_branch=branch)


def test_what_networks_are_made_of_passes(packed: Bundle, tmp_path: Path) -> None:
    check_graph(packed.onnx_file)
    check_graph(written(tmp_path / "a.onnx", nested(3)))


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (endless, "'Loop', which may never end"),
        (lambda: in_a_branch(endless()), "'Loop', which may never end"),
        (lambda: nested(4), "more than 3 deep"),
    ],
)
def test_what_might_never_end_is_refused(
    tmp_path: Path, make: Callable[[], Any], part: str
) -> None:
    with pytest.raises(ArtifactError, match=part):
        check_graph(written(tmp_path / "a.onnx", make()))


def test_functions_are_refused_and_how_to_be_rid_of_them(tmp_path: Path) -> None:
    opset = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    node = helper.make_node("Identity", ["a"], ["b"])
    twice = helper.make_function("own", "Same", ["a"], ["b"], [node], opset[:1])
    call = helper.make_node("Same", ["x"], ["y"], domain="own")
    path = written(tmp_path / "a.onnx", call, functions=[twice], opset_imports=opset)
    with pytest.raises(ArtifactError, match="inline_local_functions"):
        check_graph(path)
    onnx.save(onnx.inliner.inline_local_functions(onnx.load(path)), path)
    check_graph(path)


def test_what_is_no_onnx_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no ONNX file"):
        check_graph(tmp_path / "none.onnx")
    (tmp_path / "a.onnx").write_bytes(b"garbage")
    with pytest.raises(ArtifactError, match="is not an ONNX file"):
        check_graph(tmp_path / "a.onnx")
