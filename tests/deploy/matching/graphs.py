"""Small networks, written node by node in the form that exporters write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hwnas.deploy.matching import Decide, MatchedNetwork, decided, matched
from hwnas.deploy.onnx.module import Node, OnnxModule

CPU = torch.device("cpu")


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Node:
    return Node(kind, tuple(inputs.split()), (output,), attributes)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.5


def conv(inputs: str, output: str, kernel: int = 1, stride: int = 1, group: int = 1) -> Node:
    window = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "strides": [stride] * 2}
    return node("Conv", inputs, output, group=group, **window)


def module(
    nodes: Sequence[Node], constants: Mapping[str, Tensor], shape: tuple[int, ...] = (4, 6, 5)
) -> OnnxModule:
    """Return a network from x to the output of the last node."""
    return OnnxModule(nodes, constants, "x", nodes[-1].outputs[0], shape)


def network(
    source: OnnxModule, dtype: torch.dtype = torch.float32, decide: Decide = decided
) -> MatchedNetwork:
    """Match the network for two images, and assert that it gives the outputs of the source."""
    found = MatchedNetwork(matched(source, 2, dtype, decide), dtype, CPU, decide)
    images = normal(2, *source.input_shape, seed=1)
    with torch.no_grad():
        expected, outputs = source(images), found(images)
    tolerance = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    assert outputs.shape == expected.shape
    assert (outputs - expected).abs().max() <= tolerance * expected.abs().max()
    return found
