"""Activations are fused into the layer before them, in every form that exporters write."""

import math

import pytest
import torch

from hwnas.deploy.onnx.module import Node

from ..graphs import conv, module, network, node, normal

FORMS = {
    "relu": [node("Relu", "a", "y")],
    "relu6": [node("Clip", "a zero six", "y")],
    "clip without an end": [node("Clip", "a zero", "y")],
    "hard swish": [node("HardSwish", "a", "y")],
    "hard swish as a product": [
        node("HardSigmoid", "a", "b", alpha=1 / 6),
        node("Mul", "a b", "y"),
    ],
    "hard sigmoid": [node("HardSigmoid", "a", "y", alpha=1 / 6)],
    "sigmoid": [node("Sigmoid", "a", "y")],
    "silu": [node("Sigmoid", "a", "b"), node("Mul", "b a", "y")],
    "gelu": [node("Gelu", "a", "y")],
    "gelu by erf": [
        node("Div", "a root", "b"),
        node("Erf", "b", "c"),
        node("Add", "c one", "d"),
        node("Mul", "a d", "e"),
        node("Mul", "e half", "y"),
    ],
    "gelu by erf, halved first": [
        node("Mul", "a inverse", "b"),
        node("Erf", "b", "c"),
        node("Add", "one c", "d"),
        node("Mul", "half a", "e"),
        node("Mul", "d e", "y"),
    ],
}
NUMBERS = {"zero": 0.0, "six": 6.0, "one": 1.0, "half": 0.5}
CONSTANTS = {
    "w": normal(7, 4, 1, 1) * 4,
    "root": torch.tensor(math.sqrt(2)),
    "inverse": torch.tensor(math.sqrt(0.5)),
    **{name: torch.tensor(value) for name, value in NUMBERS.items()},
}


@pytest.mark.parametrize("form", FORMS)
def test_matcher_fuses_an_activation_into_the_layer_before_it(form: str) -> None:
    found = network(module([conv("x w", "a"), *FORMS[form]], CONSTANTS))
    assert found.counts == {"pointwise": 1}
    assert not found.left


def test_matcher_does_not_fuse_a_clip_with_a_computed_limit() -> None:
    nodes = [
        conv("x w", "a"),
        node("ReduceMax", "x", "b", keepdims=0),
        node("Clip", "a zero b", "y"),
    ]
    found = network(module(nodes, CONSTANTS))
    assert sorted(kind for kind, _ in found.left) == ["Clip", "ReduceMax"]


@pytest.mark.parametrize(
    ("activation", "left"),
    [
        (node("HardSigmoid", "a", "y", alpha=0.2), "HardSigmoid"),
        (node("Clip", "a one six", "y"), "Clip"),
        (node("Gelu", "a", "y", approximate="tanh"), "Gelu"),
        (node("LeakyRelu", "a", "y"), "LeakyRelu"),
    ],
    ids=lambda each: each.kind if isinstance(each, Node) else None,
)
def test_matcher_leaves_unsupported_activations_to_pytorch(activation: Node, left: str) -> None:
    found = network(module([conv("x w", "a"), activation], CONSTANTS))
    assert [kind for kind, _ in found.left] == [left]


def test_matcher_does_not_fuse_a_result_that_other_nodes_read() -> None:
    nodes = [conv("x w", "a"), node("Relu", "a", "b"), node("Add", "a b", "y")]
    found = network(module(nodes, CONSTANTS))
    assert found.counts == {"pointwise": 1}
    assert found.left["Relu", "no layer before it can be fused with it"] == 1
