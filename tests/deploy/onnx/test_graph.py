from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import pytest
from onnx import TensorProto, helper

from hwnas.deploy import RUNTIMES, Bundle, Device, Export, Target
from hwnas.deploy.onnx.graph import (
    check_graph,
    copy_model,
    external_files,
    model_bytes,
    read_whole_model,
)
from hwnas.deploy.runtimes import open_session
from hwnas.errors import ArtifactError

COMPILERS = ("aotinductor", "pytorch_compile")
"""Runtimes that need half a minute or more for a network."""

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


def test_check_graph_accepts_networks_and_shallow_branches(packed: Bundle, tmp_path: Path) -> None:
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
def test_check_graph_refuses_loops_and_deep_branches(
    tmp_path: Path, make: Callable[[], Any], part: str
) -> None:
    with pytest.raises(ArtifactError, match=part):
        check_graph(written(tmp_path / "a.onnx", make()))


def test_check_graph_refuses_functions_and_says_how_to_inline_them(tmp_path: Path) -> None:
    opset = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    node = helper.make_node("Identity", ["a"], ["b"])
    twice = helper.make_function("own", "Same", ["a"], ["b"], [node], opset[:1])
    call = helper.make_node("Same", ["x"], ["y"], domain="own")
    path = written(tmp_path / "a.onnx", call, functions=[twice], opset_imports=opset)
    with pytest.raises(ArtifactError, match="inline_local_functions"):
        check_graph(path)
    onnx.save(onnx.inliner.inline_local_functions(onnx.load(path)), path)
    check_graph(path)


def test_check_graph_refuses_files_that_are_not_onnx(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no ONNX file"):
        check_graph(tmp_path / "none.onnx")
    (tmp_path / "a.onnx").write_bytes(b"garbage")
    with pytest.raises(ArtifactError, match="is not an ONNX file"):
        check_graph(tmp_path / "a.onnx")


def external(name: str, location: str, **more: str) -> TensorProto:
    """Return a float32 tensor of shape (2,) that is stored in another file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=text)
    return tensor


def in_initializer(tensor: TensorProto) -> Any:
    return adding(initializer=[tensor])


def in_sparse_tensor(tensor: TensorProto) -> Any:
    indices = helper.make_tensor("i", TensorProto.INT64, [2], [0, 1])
    return adding(sparse_initializer=[helper.make_sparse_tensor(tensor, indices, [4])])


def in_attribute(tensor: TensorProto) -> Any:
    return adding(helper.make_node("Constant", [], ["w"], value=tensor))


def in_branch(tensor: TensorProto) -> Any:
    return adding(in_a_branch(helper.make_node("Constant", [], ["y"], value=tensor)))


def in_graph_of_branch(tensor: TensorProto) -> Any:
    branch = helper.make_graph([], "b", [], [], initializer=[tensor])
    return adding(helper.make_node("If", ["go"], [], then_branch=branch, else_branch=branch))


def in_function(tensor: TensorProto) -> Any:
    opset = helper.make_opsetid("", 20)
    node = helper.make_node("Constant", [], ["b"], value=tensor)
    made = adding()
    made.functions.append(helper.make_function("own", "F", [], ["b"], [node], [opset]))
    return made


def adding(*nodes: Any, **more: Any) -> Any:
    images, outputs = (value(name, TensorProto.FLOAT, [1, 1, 8, 8]) for name in "xy")
    same = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([same, *nodes], "g", [images], [outputs], **more)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


PLACES = [
    in_initializer, in_sparse_tensor, in_attribute, in_branch, in_graph_of_branch, in_function,
]  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Path of a model in a folder with weights, links and a file of weights outside it."""
    (tmp_path / "outside.bin").write_bytes(bytes(64))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "link.bin").symlink_to("../outside.bin")
    (tmp_path / "model" / "out").symlink_to("..")
    (tmp_path / "model" / "circle").symlink_to("circle")
    (tmp_path / "model" / "inside.bin").write_bytes(bytes(8))
    return tmp_path / "model" / "a.onnx"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "location",
    ["../outside.bin", "{}/outside.bin", "link.bin", "out/outside.bin", "circle", "x/../inside.bin",
     "..\\outside.bin", "", "."],
)  # fmt: skip
def test_check_graph_refuses_weights_outside_the_folder(
    model: Path, place: Callable[[TensorProto], Any], location: str
) -> None:
    made = place(external("w", location.format(model.parents[1])))
    model.write_bytes(made.SerializeToString())
    with pytest.raises(ArtifactError, match="'w' in another file"):
        check_graph(model)


@pytest.mark.parametrize(
    ("tensor", "part"),
    [
        (external("w", "none.bin"), "which is missing"),
        (external("w", "inside.bin", offset="4", length="8"), "too short"),
        (external("w", "inside.bin", offset="-4"), "too short"),
        (external("w", "inside.bin", offset="many"), "damaged"),
        (TensorProto(name="w", data_location=TensorProto.EXTERNAL), "does not name that file"),
    ],
)
def test_check_graph_refuses_missing_or_truncated_weights(
    model: Path, tensor: TensorProto, part: str
) -> None:
    model.write_bytes(in_initializer(tensor).SerializeToString())
    with pytest.raises(ArtifactError, match=part):
        check_graph(model)


def test_external_files_finds_weights_of_any_part_of_the_graph(model: Path) -> None:
    for place in PLACES:
        model.write_bytes(place(external("w", "inside.bin", length="8")).SerializeToString())
        assert external_files(model) == ["inside.bin"]
        assert model_bytes(model) == model.stat().st_size + 8


def test_copy_model_copies_external_weights_beside_the_file(model: Path, tmp_path: Path) -> None:
    numbers = np.arange(1024, dtype=np.float32)
    (model.parent / "inside.bin").write_bytes(numbers.tobytes())
    tensor = external("w", "inside.bin")
    tensor.dims[:] = [1024]
    model.write_bytes(in_initializer(tensor).SerializeToString())
    (tmp_path / "copy.onnx.data").write_bytes(b"of an older file")
    copy_model(model, tmp_path / "copy.onnx")
    assert external_files(tmp_path / "copy.onnx") == ["copy.onnx.data"]
    (tensor,) = read_whole_model(tmp_path / "copy.onnx").graph.initializer
    assert onnx.numpy_helper.to_array(tensor).tolist() == numbers.tolist()
    model.write_bytes(in_sparse_tensor(external("w", "inside.bin")).SerializeToString())
    with pytest.raises(ArtifactError, match="sparse tensor"):
        read_whole_model(model)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in COMPILERS else ()) for name in RUNTIMES],
)
def test_runtimes_refuse_weights_outside_the_folder(
    name: str, exported: Export, tmp_path: Path
) -> None:
    """Open the file with each runtime that is installed."""
    hardware = RUNTIMES[name].hardware[0]
    if reason := RUNTIMES[name].unavailable(hardware):
        pytest.skip(reason)
    whole = onnx.load(exported.path)
    (tmp_path / "model").mkdir()
    model = tmp_path / "model" / "a.onnx"
    onnx.save_model(whole, model, save_as_external_data=True, location="w.bin")
    target = Target(Device(hardware, name), RUNTIMES[name].formats[0])
    open_session(model, target).run(np.zeros((1, 1, 8, 8), np.float32))
    (model.parent / "w.bin").rename(tmp_path / "outside.bin")
    named = onnx.load(model, load_external_data=False)
    for tensor in named.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "../outside.bin" if entry.key == "location" else entry.value
    onnx.save(named, model)
    with pytest.raises(ArtifactError, match="outside its folder"):
        open_session(model, target)
