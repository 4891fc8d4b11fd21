"""Matching of mobile bottlenecks: whole and in parts, with and without a gate."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hwnas.deploy.matching import Decide, decided
from hwnas.deploy.onnx.module import Node
from hwnas.kernels.operator import Operator, Sizes
from hwnas.kernels.tuning.choice import KernelChoice

from ..graphs import conv, module, network, node, normal

WEIGHTS = {
    "e": normal(6, 4, 1, 1),
    "d": normal(6, 1, 3, 3, seed=2),
    "p": normal(4, 6, 1, 1, seed=3),
    "r": normal(2, 6, 1, 1, seed=4),
    "s": normal(6, 2, 1, 1, seed=5),
    "axes": torch.tensor([2, 3]),
}
EXPAND = [conv("x e", "a"), node("HardSwish", "a", "b")]
DEPTHWISE = [conv("b d", "c", kernel=3, group=6), node("HardSwish", "c", "f")]
GATE = [
    conv("m r", "g"),
    node("Relu", "g", "h"),
    conv("h s", "i"),
    node("HardSigmoid", "i", "j", alpha=1 / 6),
    node("Mul", "j f", "k"),
]
MEANS = {
    "a mean": node("ReduceMean", "f axes", "m"),
    "a pool": node("GlobalAveragePool", "f", "m"),
}
PROJECT = [conv("k p", "n"), node("Add", "x n", "y")]


def whole(mean: Node = MEANS["a mean"]) -> list[Node]:
    return [*EXPAND, *DEPTHWISE, mean, *GATE, *PROJECT]


def never(*names: str) -> Decide:
    """Return a decision that the named operators are slower than their parts."""

    def decide(operator: Operator, sizes: Sizes, dtype: torch.dtype) -> KernelChoice:
        return replace(decided(operator, sizes, dtype), kernel=operator.name not in names)

    return decide


def renamed(nodes: Sequence[Node], old: str, new: str) -> list[Node]:
    return [
        Node(n.kind, tuple(new if i == old else i for i in n.inputs), n.outputs, n.attributes)
        for n in nodes
    ]


@pytest.mark.parametrize("mean", MEANS)
def test_matcher_maps_a_whole_bottleneck_to_one_operator(mean: str) -> None:
    found = network(module(whole(MEANS[mean]), WEIGHTS))
    assert found.counts == {"inverted_bottleneck": 1}
    assert not found.left
    assert len(found.chosen[0].call.nodes) == len(whole())


def test_matcher_maps_a_bottleneck_without_a_gate_to_one_operator() -> None:
    nodes = [*EXPAND, *DEPTHWISE, *renamed(PROJECT, "k", "f")]
    assert network(module(nodes, WEIGHTS)).counts == {"inverted_bottleneck": 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_matcher_splits_a_bottleneck_that_is_slower_than_its_parts(dtype: torch.dtype) -> None:
    found = network(module(whole(), WEIGHTS), dtype, never("inverted_bottleneck"))
    assert found.counts == {"depthwise": 1, "pointwise": 4}
    assert not found.left
    assert [chosen.sizes.get("gate") for chosen in found.chosen] == [0, None, 0, 0, 1]
    assert found.chosen[1].sizes["sums"] == 1


def test_gate_is_finite_for_sums_too_large_for_half_precision() -> None:
    """The sum of 30 pixels of 30,000 overflows in half precision; their mean does not."""
    nodes = [conv("x d b", "f", group=4), MEANS["a mean"], *GATE, conv("k p", "y")]
    weights = {
        "d": torch.ones(4, 1, 1, 1),
        "b": torch.full((4,), 3e4),
        "r": normal(2, 4, 1, 1) / 3e4,
        "s": normal(4, 2, 1, 1, seed=2),
        "p": normal(4, 4, 1, 1, seed=3) / 3e4,
        "axes": torch.tensor([2, 3]),
    }
    found = network(module(nodes, weights), torch.float16)
    assert found.counts == {"depthwise": 1, "pointwise": 3}
    assert found.chosen[0].sizes["sums"] == 1


def test_matcher_splits_a_bottleneck_whose_feature_map_is_read_elsewhere() -> None:
    nodes = [
        *EXPAND,
        *DEPTHWISE,
        *renamed(PROJECT[:1], "k", "f"),
        node("Concat", "n f", "y", axis=1),
    ]
    found = network(module(nodes, WEIGHTS))
    assert found.counts == {"depthwise": 1, "pointwise": 2}


def test_matcher_combines_a_depthwise_and_a_pointwise_convolution() -> None:
    nodes = [conv("x d", "c", kernel=3, stride=2, group=4), node("Relu", "c", "f")]
    nodes += [conv("f p", "n"), node("Relu", "n", "y")]
    weights: dict[str, Tensor] = {"d": normal(4, 1, 3, 3), "p": normal(5, 4, 1, 1)}
    assert network(module(nodes, weights)).counts == {"depthwise_pointwise": 1}
    apart = network(module(nodes, weights), decide=never("depthwise_pointwise"))
    assert apart.counts == {"depthwise": 1, "pointwise": 1}
