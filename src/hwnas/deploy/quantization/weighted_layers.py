"""Layers with quantised weights in a QDQ file, and the second moments of their inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hwnas.deploy.onnx.graph import attributes_of

__all__ = ["QuantisedLayer", "quantised_layers"]

_MOST_ELEMENTS = 2**25  # of a convolution's unfolded inputs at once: 128 MiB


@dataclass(frozen=True, eq=False)
class QuantisedLayer:
    """Convolution, Gemm or MatMul whose weights are stored as signed bytes.

    Attributes:
        name: Name of the node.
        kind: Type of the operator.
        attributes: Attributes of the node by name.
        source: Name of the tensor that is the layer's input.
        stored: Name of the stored bytes.
        scale: Name of the scales: one, or one for each output channel.
        channel_axis: Axis of the output channels among the weights' axes.
        groups: Number of groups G.
    """

    name: str
    kind: str
    attributes: Mapping[str, Any]
    source: str
    stored: str
    scale: str
    channel_axis: int
    groups: int = 1

    def rows(self, weights: NDArray[Any]) -> Tensor:
        """Return weights of the layer as (G, R, K)."""
        first = np.moveaxis(weights, self.channel_axis, 0)
        return torch.tensor(first.reshape(self.groups, len(first) // self.groups, -1))

    def stored_form(self, rows: Tensor, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return weights (G, R, K) in the shape in which the file stores them."""
        first = [shape[self.channel_axis], *np.delete(shape, self.channel_axis)]
        return np.moveaxis(rows.numpy().reshape(first), 0, self.channel_axis)

    def steps(self, scale: NDArray[np.float32]) -> Tensor:
        """Return the scale of each output channel, (G, R or 1, 1)."""
        return torch.tensor(scale.reshape(1 if scale.size == 1 else self.groups, -1, 1))

    def hessian(self, inputs: NDArray[np.float32]) -> Tensor:
        """Return the sum of the outer products of the layer's inputs, (G, K, K), float64.

        Args:
            inputs: Values (N, ...) of the layer's input tensor.
        """
        if self.kind != "Conv":
            flat = torch.from_numpy(inputs.reshape(-1, inputs.shape[-1]))
            return (flat.T @ flat)[None].double()
        each = max(1, _MOST_ELEMENTS // (inputs[0].size * int(np.prod(self._kernel))))
        parts = [inputs[start : start + each] for start in range(0, len(inputs), each)]
        return reduce(torch.add, (self._conv_hessian(torch.from_numpy(part)) for part in parts))

    def _conv_hessian(self, x: Tensor) -> Tensor:
        top, left, bottom, right = self.attributes.get("pads", (0, 0, 0, 0))
        stride = tuple(self.attributes.get("strides", (1, 1)))
        if any((top, left, bottom, right)):
            x = functional.pad(x, (left, right, top, bottom))
        if self._kernel == (1, 1):  # unfolding would only copy
            columns = x[..., :: stride[0], :: stride[1]].flatten(2)
        else:
            dilation = tuple(self.attributes.get("dilations", (1, 1)))
            columns = functional.unfold(x, self._kernel, dilation=dilation, stride=stride)
        grouped = columns.reshape(len(x), self.groups, -1, columns.shape[2])
        products: Tensor = grouped @ grouped.transpose(2, 3)  # (N, G, K, K)
        return products.sum(0).double()

    @property
    def _kernel(self) -> tuple[int, ...]:
        return tuple(self.attributes["kernel_shape"])


def quantised_layers(model: Any) -> Iterator[QuantisedLayer]:
    """Yield the layers of a QDQ model whose rounding can be chosen, in the order of its nodes.

    Layers that share their weights, transposed convolutions and convolutions over other than two
    dimensions are left out.
    """
    graph = model.graph
    stored = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    restored = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    uses = Counter(name for node in graph.node for name in node.input)
    for node in graph.node:
        weights = restored.get(node.input[1]) if len(node.input) > 1 else None
        if weights is None or weights.input[0] not in stored:
            continue
        shared = uses[node.input[1]] > 1 or uses[weights.input[0]] > 1
        layer = None if shared else _layer(node, weights, stored)
        if layer is not None:
            yield layer


def _layer(node: Any, weights: Any, stored: Mapping[str, tuple[int, ...]]) -> QuantisedLayer | None:
    given, shape = attributes_of(node), stored[weights.input[0]]
    supported = {
        "Conv": len(shape) == 4 and given.get("auto_pad", b"NOTSET") == b"NOTSET",
        "Gemm": not given.get("transA", 0),
        "MatMul": len(shape) == 2,
    }
    if not supported.get(node.op_type, False):
        return None
    given.setdefault("kernel_shape", shape[2:])
    axis = 0 if node.op_type == "Conv" or given.get("transB", 0) else 1
    per_channel = stored.get(weights.input[1], ()) not in ((), (1,))
    if per_channel and attributes_of(weights).get("axis", 1) % len(shape) != axis:
        return None
    names = node.input[0], weights.input[0], weights.input[1]
    return QuantisedLayer(node.name, node.op_type, given, *names, axis, given.get("group", 1))
