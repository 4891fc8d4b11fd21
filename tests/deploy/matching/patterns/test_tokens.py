"""Matching of transformer layers: normalisation, parallel layers, and two forms of attention."""

import pytest
import torch

from hwnas.deploy.onnx.module import Node

from ..graphs import conv, module, network, node, normal

NORM = {"scale": normal(6).exp(), "shift": normal(6, seed=1)}
SIZES = {"heads": torch.tensor([0, 0, 2, 4]), "flat": torch.tensor([0, 0, 8])}
HEADS_FIRST = [0, 2, 1, 3]


def projections() -> list[Node]:
    nodes = []
    for name in "qkv":
        nodes += [
            node("MatMul", f"n w{name}", f"{name}0"),
            node("Add", f"{name}0 b{name}", f"{name}1"),
            node("Reshape", f"{name}1 heads", f"{name}2"),
        ]
    return nodes


def attention(scale: float = 0.5) -> tuple[list[Node], dict[str, torch.Tensor]]:
    nodes = [
        node("LayerNormalization", "x scale shift", "n", axis=-1, epsilon=1e-6),
        *projections(),
        node("Transpose", "q2", "q3", perm=HEADS_FIRST),
        node("Mul", "q3 factor", "q4"),
        node("Transpose", "k2", "k3", perm=[0, 2, 3, 1]),
        node("Transpose", "v2", "v3", perm=HEADS_FIRST),
        node("MatMul", "q4 k3", "s"),
        node("Softmax", "s", "p", axis=3),
        node("MatMul", "p v3", "m"),
        node("Transpose", "m", "t", perm=HEADS_FIRST),
        node("Reshape", "t flat", "f"),
        node("MatMul", "f wo", "o"),
        node("Add", "x o", "y"),
    ]
    constants = {f"w{n}": normal(6, 8, seed=i) for i, n in enumerate("qkv")}
    constants |= {f"b{n}": normal(8, seed=i) for i, n in enumerate("qkv")}
    constants |= {"wo": normal(8, 6, seed=7), "factor": torch.tensor(scale), **NORM, **SIZES}
    return nodes, constants


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_matcher_maps_a_block_of_attention(dtype: torch.dtype) -> None:
    found = network(module(*attention(), (5, 6)), dtype)
    assert found.counts == {"norm_linear": 1, "attention": 1, "pointwise": 1}
    assert found.chosen[0].sizes["outputs"] == 24  # queries, keys and values
    assert not found.left


def test_matcher_leaves_attention_with_another_scale_to_pytorch() -> None:
    found = network(module(*attention(0.3), (5, 6)))
    assert "attention" not in found.counts
    assert found.left["Softmax", "its scale is not 1 / sqrt(d)"] == 1


def test_matcher_finds_attention_with_keys_transposed_twice() -> None:
    nodes, constants = attention()
    turned = [
        node("Transpose", "k2", "k5", perm=HEADS_FIRST),
        node("Transpose", "k5", "k3", perm=[0, 1, 3, 2]),
    ]
    place = [n.outputs[0] for n in nodes].index("k3")
    nodes[place : place + 1] = turned
    assert network(module(nodes, constants, (5, 6))).counts["attention"] == 1


def test_matcher_fuses_a_normalisation_into_each_layer_that_reads_it() -> None:
    nodes = [
        node("LayerNormalization", "x scale shift", "n"),
        node("MatMul", "n v", "a"),
        node("Gelu", "a", "b"),
        node("MatMul", "n w", "c"),
        node("Add", "b c", "y"),
    ]
    constants = {"v": normal(6, 3), "w": normal(6, 3, seed=2), **NORM}
    found = network(module(nodes, constants, (5, 6)))
    assert found.counts == {"norm_linear": 2}
    assert not found.left


def test_matcher_leaves_a_normalisation_with_other_readers_to_pytorch() -> None:
    nodes = [
        node("LayerNormalization", "x scale shift", "n"),
        node("MatMul", "n w", "a"),
        node("Add", "n a", "y"),
    ]
    found = network(module(nodes, {"w": normal(6, 6), **NORM}, (5, 6)))
    assert found.counts == {"pointwise": 1}
    why = "not only linear layers read it"
    assert found.left["LayerNormalization", why] == 1


def slim(heads: int = 2, width: int = 4) -> tuple[list[Node], dict[str, torch.Tensor]]:
    nodes = []
    for name in "qkv":
        nodes += [conv(f"x w{name}", f"{name}0"), node("Reshape", f"{name}0 split", f"{name}1")]
    nodes += [
        node("Mul", "q1 factor", "q2"),
        node("Transpose", "q2", "q3", perm=[0, 1, 3, 2]),
        node("MatMul", "q3 k1", "s"),
        node("Softmax", "s", "p", axis=3),
        node("Transpose", "p", "t", perm=[0, 1, 3, 2]),
        node("MatMul", "v1 t", "m"),
        node("Reshape", "m join", "y"),
    ]
    constants = {f"w{n}": normal(heads * width, 4, 1, 1, seed=i) for i, n in enumerate("qkv")}
    constants["split"] = torch.tensor([0, heads, width, -1])
    constants["join"] = torch.tensor([0, heads * width, 6, 5])
    constants["factor"] = torch.tensor(width**-0.5)
    return nodes, constants


def test_matcher_maps_attention_between_pixels_to_one_operator() -> None:
    found = network(module(*slim()))
    assert found.counts == {"slim_attention": 1}
    assert not found.left


def test_matcher_keeps_the_layout_of_a_group_normalisation() -> None:
    nodes = [
        node("Reshape", "x grouped", "a"),
        node("InstanceNormalization", "a one zero", "b", epsilon=1e-5),
        node("Reshape", "b back", "c"),
        node("Mul", "c scale", "d"),
        node("Add", "shift d", "y"),
    ]
    constants = {
        "grouped": torch.tensor([0, 1, -1]),
        "back": torch.tensor([0, 4, 6, 5]),
        "one": torch.ones(1),
        "zero": torch.zeros(1),
        "scale": normal(4, 1, 1),
        "shift": normal(4, 1, 1, seed=2),
    }
    source = module(nodes, constants)
    found = network(source)
    assert [kind for kind, _ in found.left] == ["GroupNormalization"]
    outputs = found(normal(2, 4, 6, 5))
    assert outputs.is_contiguous(memory_format=torch.channels_last)
