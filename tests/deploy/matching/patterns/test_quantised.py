"""Matched networks of quantised files agree with ONNX Runtime within a few int8 steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from hwnas.deploy.matching import MatchedNetwork, matched
from hwnas.deploy.onnx.module import Node, OnnxModule
from hwnas.deploy.quantization.quantize import Int8Quantizer

from ..graphs import CPU, conv, node, normal
from .test_activations import CONSTANTS, FORMS
from .test_bottlenecks import GATE, MEANS, WEIGHTS

Ranges = Mapping[torch.dtype, float]
EXACT: Ranges = {torch.float32: 0.01, torch.float16: 1.1}
LAST = {("DequantizeLinear", "the output is in floating point"): 1}


@dataclass(frozen=True)
class Quantised:
    """Small network, quantised with four random batches of two images."""

    path: Path
    images: Tensor

    @classmethod
    def of(
        cls,
        folder: Path,
        nodes: Sequence[Node],
        constants: Mapping[str, Tensor],
        shape: tuple[int, ...] = (4, 6, 5),
        without: str = "",
    ) -> Quantised:
        """Quantise a network of the nodes; the node ``without`` stays in floating point."""
        made = [
            helper.make_node(n.kind, n.inputs, n.outputs, n.outputs[0], **n.attributes)
            for n in nodes
        ]
        used = {name for n in nodes for name in n.inputs}
        weights = [
            numpy_helper.from_array(value.numpy(), name)
            for name, value in constants.items()
            if name in used
        ]
        images = normal(2, *shape, seed=1)
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", *shape))
        returned = helper.make_tensor_value_info(nodes[-1].outputs[0], TensorProto.FLOAT, None)
        graph = helper.make_graph(made, "network", [given], [returned], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        plain, path = folder / "plain.onnx", folder / "int8.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(model), plain)
        batches = [normal(*images.shape, seed=seed).numpy() for seed in range(1, 5)]
        with Int8Quantizer(plain, batches) as quantizer:
            left = [unit for unit in quantizer.units if unit.name == without]
            quantizer.write(path, without=left)
        return cls(path, images)

    def network(
        self, tolerance: Ranges = EXACT, dtype: torch.dtype = torch.float32
    ) -> MatchedNetwork:
        """Match it, and assert the largest difference from ONNX Runtime, in int8 steps."""
        source = OnnxModule.load(self.path).eval()
        found = MatchedNetwork(matched(source, len(self.images), dtype), dtype, CPU)
        options = onnxruntime.SessionOptions()
        # With optimisation, ONNX Runtime omits some of the rounding in the file.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(self.path, options)
        [expected] = session.run(None, {"x": self.images.numpy()})
        scale = next(n.inputs[1] for n in source.nodes[::-1] if n.kind == "DequantizeLinear")
        off = np.abs(found(self.images).numpy() - expected) / float(source.constants[scale])
        assert off.max() <= tolerance[dtype]
        assert np.ptp(expected) > 20 * float(source.constants[scale])
        return found


def operators(network: MatchedNetwork) -> Counter[str]:
    """Count the calls of each operator; every generated chain is counted as chain."""
    names = [each.call.operator.name for each in network.chosen]
    return Counter("chain" if name.startswith("fused_") else name for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_matcher_maps_elementwise_operators_after_an_int8_layer_to_a_table(
    form: str, tmp_path: Path
) -> None:
    """Files round values up to five times between two layers."""
    nodes, weights = [conv("x w", "a"), *FORMS[form], conv("y v", "z")], {"v": normal(5, 7, 1, 1)}
    network = Quantised.of(tmp_path, nodes, CONSTANTS | weights).network()
    assert operators(network) == {"chain": 1, "int8_pointwise": 2}  # the chain rounds the images
    assert network.left == LAST


@pytest.mark.slow
@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_matcher_maps_a_bottleneck_with_a_gate_to_int8(dtype: torch.dtype, tmp_path: Path) -> None:
    activation = [node("HardSigmoid", "a", "s0", alpha=1 / 6), node("Mul", "a s0", "b")]
    nodes = [conv("x e", "a"), *activation, conv("b d", "f", kernel=3, group=6)]
    nodes += [MEANS["a pool"], *GATE, conv("k p", "n"), node("Add", "x n", "y")]
    network = Quantised.of(tmp_path, nodes, WEIGHTS).network(dtype=dtype)
    # Chains: images, means of pixels, the gate in floats, and the product with the gate.
    assert operators(network) == {"chain": 4, "int8_pointwise": 4, "int8_depthwise": 1}
    assert [each.sizes["residual"] for each in network.chosen if "residual" in each.sizes][-1]
    assert network.left == LAST


def residual_block() -> tuple[list[Node], dict[str, Tensor]]:
    """Return the first and last layers of a ResNet, with a block that halves the feature map."""
    nodes = [
        conv("x s b", "a", kernel=3),
        node("Relu", "a", "c"),
        conv("c v", "d", kernel=3, stride=2),
        node("Relu", "d", "e"),
        conv("e w", "f", kernel=3),
        conv("c h", "g", stride=2),
        node("Add", "f g", "i"),
        node("Relu", "i", "j"),
        node("GlobalAveragePool", "j", "k"),
        node("Flatten", "k", "l"),
        node("Gemm", "l o b", "y", transB=1),
    ]
    shapes = {"s": (6, 4, 3, 3), "v": (5, 6, 3, 3), "w": (5, 5, 3, 3), "h": (5, 6, 1, 1)}
    weights = {name: normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return nodes, {**weights, "o": normal(6, 5, seed=8), "b": normal(6, seed=9)}


@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_matcher_maps_a_residual_network_to_int8(dtype: torch.dtype, tmp_path: Path) -> None:
    network = Quantised.of(tmp_path, *residual_block()).network(dtype=dtype)
    assert operators(network) == {"chain": 2, "int8_pointwise": 1, "int8_convolution": 4}
    assert network.left == LAST


def test_matcher_maps_linear_layers_of_tokens_to_int8(tmp_path: Path) -> None:
    nodes = [
        node("LayerNormalization", "x scale shift", "n", axis=-1),
        node("MatMul", "n v", "a"),
        node("Add", "a c", "b"),
        node("Gelu", "b", "d"),
        node("MatMul", "d w", "e"),
        node("Add", "e f", "g"),
        node("Add", "x g", "y"),
    ]
    constants = {"v": normal(6, 9), "w": normal(9, 6, seed=2) / 2, "c": normal(9), "f": normal(6)}
    constants |= {"scale": normal(6).exp(), "shift": normal(6, seed=1)}
    # The kernel adds the bias before it rounds the sum; ONNX Runtime also rounds before that.
    network = Quantised.of(tmp_path, nodes, constants, (5, 6)).network({torch.float32: 2.01})
    assert operators(network) == {"chain": 2, "int8_pointwise": 2}
    assert network.left == LAST


def test_matcher_reshapes_int8_values_after_their_table(
    tmp_path: Path,
) -> None:
    nodes = [
        node("MatMul", "x w", "a"),
        node("Reshape", "a heads", "b"),
        node("Transpose", "b", "c", perm=[0, 2, 1, 3]),
        node("Mul", "c half", "y"),
    ]
    constants = {"w": normal(6, 8), "heads": torch.tensor([0, 0, 2, 4]), "half": torch.tensor(0.5)}
    network = Quantised.of(tmp_path, nodes, constants, (5, 6)).network()
    assert operators(network) == {"chain": 1, "int8_pointwise": 1}
    assert network.left == LAST


def test_matcher_maps_patches_to_an_int8_product(tmp_path: Path) -> None:
    patches = conv("x w", "a", kernel=2, stride=2)
    patches = Node("Conv", patches.inputs, ("y",), {**patches.attributes, "pads": [0] * 4})
    network = Quantised.of(tmp_path, [patches], {"w": normal(7, 4, 2, 2)}, (4, 6, 4)).network()
    assert operators(network) == {"chain": 1, "int8_pointwise": 1}
    assert network.chosen[1].sizes["inputs"] == 16


def test_matcher_leaves_unsupported_quantised_layers_to_pytorch(
    tmp_path: Path,
) -> None:
    nodes = [
        conv("x g", "a", kernel=3, group=2),
        node("ConvTranspose", "a t", "b", strides=[2, 2]),
        node("Softmax", "b", "c", axis=1),
        conv("c w", "y"),
    ]
    constants = {"g": normal(4, 2, 3, 3), "t": normal(4, 3, 2, 2), "w": normal(9, 3, 1, 1)}
    network = Quantised.of(tmp_path, nodes, constants).network()
    reasons = {kind: why for kind, why in network.left}
    assert reasons["Conv"].startswith("2 groups of 2 channels: operators support one group")
    assert reasons["ConvTranspose"].startswith("operators do not support transposed convolutions")
    assert operators(network)["int8_pointwise"] == 1


def test_matcher_maps_a_layer_without_quantisation_to_a_float_operator(tmp_path: Path) -> None:
    nodes = [conv("x v", "a"), node("Relu", "a", "b"), conv("b w", "c"), conv("c v", "y")]
    constants = {"v": normal(4, 4, 1, 1), "w": normal(4, 4, 1, 1, seed=2)}
    network = Quantised.of(tmp_path, nodes, constants, without="c").network()
    assert operators(network) == {"chain": 2, "int8_pointwise": 2, "pointwise": 1}


def test_matcher_maps_weights_with_a_zero_point_to_a_float_operator(tmp_path: Path) -> None:
    made = Quantised.of(tmp_path, [conv("x w", "y")], {"w": normal(4, 4, 1, 1)})
    model = onnx.load(made.path)
    [zero] = [each for each in model.graph.initializer if each.name == "w_zero_point"]
    zero.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(zero) + np.int8(3), zero.name))
    onnx.save(model, made.path)
    assert operators(made.network()) == {"chain": 1, "pointwise": 1}
