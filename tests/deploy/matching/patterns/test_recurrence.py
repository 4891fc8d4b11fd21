"""Matching of recurrent layers, and reasons to leave some to PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hwnas.deploy import export_onnx
from hwnas.deploy.onnx.module import Node, OnnxModule
from hwnas.kernels.operator import Operator, Sizes
from hwnas.kernels.tuning.choice import KernelChoice

from ..graphs import module, network, node, normal

GATES = {"LSTM": 4, "GRU": 3}
INPUTS, CHANNELS = 5, 12


def recurrent(
    kind: str, output: int, states: str, channels: int = CHANNELS, **changes: Tensor
) -> OnnxModule:
    """Return a network of one layer, whose output is that of the node at the given place."""
    gates = GATES[kind] * channels
    names = ["y", "last", "state"][: 3 if kind == "LSTM" else 2]
    attributes = {"hidden_size": channels} | ({"linear_before_reset": 1} if kind == "GRU" else {})
    weights = {
        "w": normal(1, gates, INPUTS),
        "r": normal(1, gates, channels, seed=2) / channels**0.5,
        "b": normal(1, 2 * gates, seed=3),
        "h": normal(1, 2, channels, seed=4),
        "c": normal(1, 2, channels, seed=5),
    }
    layer = Node(kind, ("t", "w", "r", "b", "", *states.split()), tuple(names), attributes)
    nodes = [node("Transpose", "x", "t", perm=[1, 0, 2]), layer]
    # A batch comes first in the output, as in any network.
    perm = [2, 0, 1, 3] if output == 0 else [1, 0, 2]
    nodes.append(node("Transpose", names[output], "z", perm=perm))
    return module(nodes, weights | changes, (3, INPUTS))


@pytest.mark.parametrize("states", ["", "h", "h c"])
@pytest.mark.parametrize(
    ("kind", "output"), [("LSTM", 0), ("LSTM", 1), ("LSTM", 2), ("GRU", 0), ("GRU", 1)]
)
def test_matcher_maps_a_recurrent_layer_to_a_product_and_one_kernel(
    kind: str, output: int, states: str
) -> None:
    found = network(recurrent(kind, output, states if kind == "LSTM" else states[:1]))
    assert found.counts == {"pointwise": 1, "recurrent": 1}
    assert found.chosen[1].sizes["initial"] == bool(states)
    assert {kind for kind, _ in found.left} <= {"Gather"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("layers", [1, 2])
def test_matcher_maps_exported_modules_to_the_recurrent_kernel(
    kind: str, layers: int, tmp_path: Path
) -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(nn, kind)(INPUTS, CHANNELS, layers, batch_first=True)
            self.head = nn.Linear(CHANNELS, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(x)[0][:, -1])

    torch.manual_seed(0)
    export_onnx(Network().eval(), (6, INPUTS), tmp_path / "network.onnx")
    source = OnnxModule.load(tmp_path / "network.onnx").eval()
    for dtype in (torch.float32, torch.float16):
        assert network(source, dtype).counts == {"pointwise": layers + 1, "recurrent": layers}


def test_recurrent_weights_in_blocks_on_the_diagonal_become_heads() -> None:
    blocks = torch.block_diag(*(normal(18, 18, seed=i) / 5 for i in range(2)))
    found = network(recurrent("LSTM", 0, "", 36, r=blocks.repeat(4, 1)[None]))
    assert (found.chosen[1].sizes["heads"], found.chosen[1].sizes["width"]) == (2, 18)
    blocks[35, 0] = 0.5
    found = network(recurrent("LSTM", 0, "", 36, r=blocks.repeat(4, 1)[None]))
    assert (found.chosen[1].sizes["heads"], found.chosen[1].sizes["width"]) == (1, 36)


def test_matcher_leaves_wide_and_reversed_layers_to_pytorch_with_a_reason() -> None:
    found = network(recurrent("GRU", 0, "", 160))
    assert found.left["GRU", "its 160 channels are one head; the operator takes up to 128 a head"]
    assert not found.counts
    source = recurrent("LSTM", 0, "")
    before, layer, after = source.nodes
    layer = replace(layer, attributes={**layer.attributes, "direction": "reverse"})
    constants = {k: v for k, v in source.constants.items() if isinstance(v, Tensor)}
    found = network(module([before, layer, after], constants, (3, INPUTS)))
    assert found.left["LSTM", "its direction is reverse; the operator runs forwards"]


def test_matcher_leaves_a_layer_with_a_computed_bias_to_pytorch() -> None:
    source = recurrent("GRU", 0, "")
    constants = {k: v for k, v in source.constants.items() if isinstance(v, Tensor)}
    before, layer, after = source.nodes
    layer = replace(layer, inputs=("t", "w", "r", "bias"))
    bias = [node("ReduceMax", "x", "largest", keepdims=0), node("Mul", "b largest", "bias")]
    nodes = [*bias, before, layer, after]
    found = network(module(nodes, constants, (3, INPUTS)))
    assert found.left["GRU", "its weights are not constants"]


def test_matcher_leaves_the_layer_to_pytorch_if_the_kernel_was_not_measured() -> None:
    """PyTorch's own layer is much faster than the formula of the operator."""

    def unmeasured(operator: Operator, sizes: Sizes, dtype: torch.dtype) -> KernelChoice:
        return KernelChoice(operator.default_config(sizes, dtype), False)

    found = network(recurrent("LSTM", 0, ""), decide=unmeasured)
    [(kind, reason)] = found.left
    assert kind == "LSTM"
    assert reason.startswith("recurrent was not measured to be faster at sequences=2,steps=3,gat")
