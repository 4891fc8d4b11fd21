"""Matching of convolutions and linear layers, and reasons to leave some to PyTorch."""

import re

import pytest
import torch

from hwnas.deploy.onnx.module import Node

from ..graphs import conv, module, network, node, normal


def test_matcher_fuses_a_sum_into_the_layer_before_it() -> None:
    nodes = [conv("x v", "a"), conv("a w b", "c"), node("Add", "x c", "y")]
    constants = {"v": normal(4, 4, 1, 1), "w": normal(4, 4, 1, 1, seed=2), "b": normal(4)}
    found = network(module(nodes, constants))
    assert found.counts == {"pointwise": 2}
    assert [chosen.sizes["residual"] for chosen in found.chosen] == [0, 1]
    assert not found.left


@pytest.mark.parametrize("kernel", [1, 3])
def test_matcher_fuses_a_sum_and_its_activation_into_the_layer(kernel: int) -> None:
    nodes = [conv("x w", "a", kernel), node("Add", "a x", "b"), node("Relu", "b", "y")]
    found = network(module(nodes, {"w": normal(4, 4, kernel, kernel)}))
    assert [chosen.sizes["residual"] for chosen in found.chosen] == [1]
    assert found.chosen[0].call.nodes == ("Conv", "Add", "Relu")
    assert not found.left


def test_matcher_fuses_one_of_two_activations_around_a_sum() -> None:
    nodes = [conv("x w", "a"), node("Relu", "a", "b"), node("Add", "b x", "c")]
    found = network(module([*nodes, node("Relu", "c", "y")], {"w": normal(4, 4, 1, 1)}))
    assert [kind for kind, _ in found.left] == ["Relu"]


@pytest.mark.parametrize("name", ["convolution", "depthwise_pointwise", "norm_linear"])
def test_matcher_fuses_an_activated_sum_only_where_supported(name: str) -> None:
    def tokens(*names: str) -> list[Node]:
        return [node("LayerNormalization", "x s t", "n"), node("MatMul", "n m", names[0])]

    makers = {
        "convolution": [conv("x w", "a", 3)],
        "depthwise_pointwise": [conv("x d", "z", 3, group=4), conv("z w1", "a")],
        "norm_linear": tokens("a"),
    }
    nodes = [*makers[name], node("Add", "a x", "b"), node("Relu", "b", "y")]
    weights = {"w": normal(4, 4, 3, 3), "d": normal(4, 1, 3, 3), "w1": normal(4, 4, 1, 1)}
    weights |= {"m": normal(6, 6), "s": normal(6), "t": normal(6)}
    shape = (5, 6) if name == "norm_linear" else (4, 6, 5)
    found = network(module(nodes, weights, shape))
    assert found.counts[name] == (name == "convolution")


def test_matcher_does_not_fuse_a_broadcast_sum_as_a_residual() -> None:
    nodes = [conv("x w", "a"), node("ReduceMean", "x axes", "m"), node("Add", "a m", "y")]
    found = network(module(nodes, {"w": normal(4, 4, 1, 1), "axes": torch.tensor([2, 3])}))
    assert [chosen.sizes.get("residual") for chosen in found.chosen] == [0, None]


def test_matcher_fuses_an_addition_as_the_bias_of_a_linear_layer() -> None:
    nodes = [
        node("MatMul", "x w", "a"),
        node("Add", "b a", "c"),
        node("Gelu", "c", "d"),
        node("Flatten", "d", "e"),
        node("Gemm", "e v f", "y", transB=1),
    ]
    constants = {"w": normal(5, 3), "b": normal(3), "v": normal(2, 18), "f": normal(2, seed=3)}
    found = network(module(nodes, constants, (6, 5)))
    assert found.counts == {"pointwise": 2}
    assert not found.left


def test_matcher_leaves_a_computed_bias_to_pytorch() -> None:
    nodes = [node("ReduceMean", "x axes", "b", keepdims=0), node("Gemm", "x w b", "y")]
    found = network(module(nodes, {"w": normal(6, 6), "axes": torch.tensor([0])}, (6,)))
    assert found.left["Gemm", "its bias is not a constant"] == 1


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_matcher_fuses_activation_and_sum_into_a_dense_convolution(
    kernel: int, stride: int
) -> None:
    nodes = [
        conv("x v b", "a", kernel, stride),
        node("HardSwish", "a", "c"),
        conv("c w", "d", kernel),
        node("Add", "c d", "y"),
    ]
    constants = {"v": normal(3, 4, kernel, kernel), "b": normal(3)}
    constants["w"] = normal(3, 3, kernel, kernel, seed=2) / kernel
    found = network(module(nodes, constants))
    pointwise = {1: 2 - (stride > 1)}.get(kernel, 0)
    assert found.counts["convolution"] == 2 - pointwise
    assert found.counts["pointwise"] == pointwise
    assert not found.left


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 3, 0), (4, 2, 1)])
def test_matcher_maps_windows_with_little_overlap_to_a_product(
    kernel: int, stride: int, padding: int
) -> None:
    window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [padding] * 4}
    constants = {"w": normal(7, 4, kernel, kernel), "b": normal(7)}
    found = network(module([node("Conv", "x w b", "y", **window)], constants, (4, 6, 7)))
    assert found.counts == {"pointwise": 1}
    assert found.chosen[0].sizes["inputs"] == 4 * kernel**2
    assert found.left == {("Windows", "gathered for pointwise, which reads pixels"): 1}


@pytest.mark.parametrize("pool", ["GlobalAveragePool", "ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("kept", [0, 1])
def test_matcher_maps_global_pooling_to_one_kernel(pool: str, kept: int) -> None:
    axes = "" if pool == "GlobalAveragePool" else " axes"
    pooling = node(pool, f"x{axes}", "y", keepdims=kept or int(not axes))
    found = network(module([pooling], {"axes": torch.tensor([-1, -2])}))
    assert len(found.chosen) == 1
    assert not found.left


def test_matcher_combines_normalisation_and_pooling_of_tokens() -> None:
    nodes = [
        node("LayerNormalization", "x scale shift", "n"),
        node("ReduceMean", "n axes", "m", keepdims=0),
        node("Gemm", "m w", "y"),
    ]
    constants = {"scale": normal(6), "shift": normal(6, seed=1), "axes": torch.tensor([1])}
    found = network(module(nodes, {**constants, "w": normal(6, 3)}, (5, 6)))
    assert found.chosen[0].call.nodes == ("LayerNormalization", "ReduceMean")
    assert not found.left


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_matched_network_agrees_in_every_number_format(dtype: torch.dtype) -> None:
    nodes = [
        conv("x d", "a", kernel=3, stride=2, group=4),
        node("Relu", "a", "b"),
        node("Tanh", "b", "c"),
        conv("c w", "y"),
    ]
    found = network(module(nodes, {"d": normal(4, 1, 3, 3), "w": normal(3, 4, 1, 1)}), dtype)
    assert found.counts == {"depthwise": 1, "pointwise": 1}
    assert found.left == {("Tanh", "there is no operator for it"): 1}


@pytest.mark.parametrize(
    ("attributes", "shape", "reason"),
    [
        ({"group": 2, "pads": [1] * 4}, (4, 2, 3, 3), "2 groups of 2 channels"),
        ({"dilations": [2, 2], "pads": [2] * 4}, (3, 4, 3, 3), "it is dilated"),
        ({"pads": [0] * 4}, (3, 4, 3, 3), r"its padding is \[0, 0, 0, 0\], not half of its window"),
        ({"strides": [2, 1], "pads": [1] * 4}, (3, 4, 3, 3), r"its strides are \[2, 1\]"),
        ({"strides": [1, 1]}, (3, 4, 2, 2), "its window is 2 x 2, not square with an odd side"),
        ({"group": 4, "pads": [6] * 4}, (4, 1, 13, 13), "depthwise takes windows of odd sizes"),
    ],
)
def test_matcher_leaves_unsupported_convolutions_to_pytorch_with_a_reason(
    attributes: dict[str, object], shape: tuple[int, ...], reason: str
) -> None:
    found = network(module([node("Conv", "x w", "y", **attributes)], {"w": normal(*shape)}))
    [(kind, why)] = found.left
    assert kind == "Conv"
    assert re.match(reason, why), why
