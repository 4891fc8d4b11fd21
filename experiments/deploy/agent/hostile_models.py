"""Hostile files that a holder of the token may send to an agent."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Sequence
from typing import Any

from onnx import TensorProto, helper

__all__ = ["hostile_graphs", "hostile_uploads"]

_IMAGE = [1, 1, 2, 2]
_TERABYTES = 2**44
"""Number of elements of a tensor that needs terabytes."""


def hostile_graphs() -> dict[str, bytes]:
    """Return valid ONNX files that never end, need all memory, or refer to external files."""
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    body, numbers = _loop()
    branch = helper.make_graph(body, "branch", [], [_value("y")])
    if_ = helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)
    one, four = [_TERABYTES], [2**20, 2**20, 2, 2]
    graphs = {
        "endless loop": _model(body, numbers),
        "endless loop in a branch": _model([if_], numbers),
        "minutes of products": _model(*_products(5000)),
        "terabytes by Expand": _model(_summed("Expand", ["x", "shape"]), [_shape(four)]),
        "terabytes by ConstantOfShape": _model(
            _summed("ConstantOfShape", ["shape"]), [_shape(one)]
        ),
        "weights in ../": _model(relu, [_elsewhere("../../key")]),
        "weights at an absolute path": _model(relu, [_elsewhere("/etc/passwd")]),
        "constant in ../": _model(
            [helper.make_node("Constant", [], ["c"], value=_elsewhere("../../key")), *relu], []
        ),
    }
    return {name: model.SerializeToString() for name, model in graphs.items()}


def hostile_uploads() -> dict[str, bytes]:
    """Return files that are not ONNX at all."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("../../key", "0f" * 32)
        file.writestr("/etc/hwnas", "x")
        file.writestr("bomb", bytes(10**7))
    return {
        "archive with paths out of it": archive.getvalue(),
        "pickle that would run something": pickle.dumps(_Runs()),
        "script": b"#!/bin/sh\ntouch /tmp/hwnas-was-here\n",
        "nothing but zeros": bytes(1000),
    }


class _Runs:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("raise SystemExit",)


def _model(nodes: Sequence[Any], tensors: Sequence[Any]) -> Any:
    graph = helper.make_graph(
        nodes, "graph", [_value("x", _IMAGE)], [_value("y", [*"abcd"])], tensors
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _value(name: str, shape: Sequence[Any] | None = None, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _shape(sizes: Sequence[int]) -> Any:
    return helper.make_tensor("shape", TensorProto.INT64, [len(sizes)], sizes)


def _loop() -> tuple[list[Any], list[Any]]:
    """Return a loop that runs for longer than anyone waits."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Mul", ["state", "state"], ["next"]),
        ],
        "body",
        [_value("i", [], TensorProto.INT64), _value("go", [], TensorProto.BOOL), _value("state")],
        [_value("go_on", [], TensorProto.BOOL), _value("next")],
    )
    numbers = [
        helper.make_tensor("times", TensorProto.INT64, [], [2**62]),
        helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
    ]
    return [helper.make_node("Loop", ["times", "yes", "x"], ["y"], body=body)], numbers


def _products(count: int) -> tuple[list[Any], list[Any]]:
    """Return a chain of large matrix products: no loop, but minutes for one run."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["one"]),
        helper.make_node("Expand", ["one", "shape"], ["m0"]),
        *(helper.make_node("MatMul", [f"m{i}", f"m{i}"], [f"m{i + 1}"]) for i in range(count)),
        helper.make_node("ReduceSum", [f"m{count}"], ["sum"]),
        helper.make_node("Add", ["sum", "x"], ["y"]),
    ]
    return nodes, [_shape([1, 1, 1024, 1024])]


def _summed(operator: str, inputs: Sequence[str]) -> list[Any]:
    return [
        helper.make_node(operator, inputs, ["large"]),
        helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0),
        helper.make_node("Add", ["sum", "x"], ["y"]),
    ]


def _elsewhere(location: str) -> Any:
    """Return a tensor whose values are in an external file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    return tensor
