"""Files in int8 as programs that compilers for phones recognise.

ExecuTorch and LiteRT compute in int8 where a program rounds with the operators
``torch.ops.quantized_decomposed``, as `PT2E quantisation
<https://docs.pytorch.org/ao/stable/pt2e_quantization/index.html>`_ writes them: activations are
signed, and layers with weights are convolutions and ``linear``, with a scale for each output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hwnas.deploy.onnx.module import Node, OnnxModule
from hwnas.deploy.onnx.operators import OPERATORS

__all__ = ["EXECUTORCH", "LITERT", "ProgramStyle", "integer_program"]

_ACTIVATIONS, _WEIGHTS = (-128, 127, torch.int8), (-127, 127, torch.int8)
_TO_SIGNED = {torch.int8: 0, torch.uint8: -128}
_LAYERS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True)
class ProgramStyle:
    """What a compiler expects of a program in int8.

    Attributes:
        folded: Whether weights are stored as integers; otherwise in single precision, and the
            program rounds them, which the compiler does in advance.
        grids: Scale and zero point in int8 of the results of some operators, which the compiler
            requires, by their kind.
    """

    folded: bool
    grids: Mapping[str, tuple[float, int]] = field(default_factory=dict)


EXECUTORCH = ProgramStyle(folded=True)
LITERT = ProgramStyle(
    folded=False,
    grids={"Sigmoid": (1 / 256, -128), "Softmax": (1 / 256, -128), "Tanh": (1 / 128, 0)},
)


@dataclass(frozen=True)
class _Call(Node):
    """Node that calls a function of its inputs."""

    function: Callable[..., Any]

    def run(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Call the function and return its result by name."""
        return {self.outputs[0]: self.function(*arguments)}


def integer_program(module: OnnxModule, style: ProgramStyle = EXECUTORCH) -> OnnxModule:
    """Return a network in int8 with the rounding operators that compilers recognise.

    It computes the same, but for results that the style rounds to another grid. Layers whose inputs
    are not rounded get their weights in single precision.

    Args:
        module: Network with ``QuantizeLinear`` and ``DequantizeLinear``, as `OnnxModule.frozen`
            returns it.
        style: What the compiler expects.
    """
    # The operators are registered when this module is loaded.
    import torch.ao.quantization.fx._decomposed  # noqa: F401

    rewriting = _Rewriting(module, style)
    nodes = [made for node in module.nodes for made in rewriting.rewritten(node)]
    used = {name for node in nodes for name in node.inputs} | {module.output_name}
    values = {name: value for name, value in rewriting.constants.items() if name in used}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    numbers = {name: value for name, value in values.items() if name not in tensors}
    return OnnxModule(
        nodes, tensors, module.input_name, module.output_name, module.input_shape, numbers
    )


class _Rewriting:
    """Rewriting of one network, node by node.

    Attributes:
        constants: Weights and numbers of the rewritten network by name.
    """

    def __init__(self, module: OnnxModule, style: ProgramStyle) -> None:
        self._style = style
        self._kinds = {name: node.kind for node in module.nodes for name in node.outputs}
        self.constants: dict[str, Any] = dict(module.constants)
        self._users: dict[str, list[Node]] = {}
        for node in module.nodes:
            for name in node.inputs:
                self._users.setdefault(name, []).append(node)
        self._output = module.output_name
        self._weights: dict[str, Node] = {}  # by the name of the weights in single precision
        self._grids: dict[str, tuple[float, int]] = {}  # scale and zero point of rounded values
        self._rounded: dict[str, str] = {}  # steps by the name of the same in single precision

    def rewritten(self, node: Node) -> list[Node]:
        """Return the nodes that compute what a node does.

        Each reads its rounded inputs by nodes of its own, so that a compiler can join it with them.
        """
        made: list[Node] = []
        for each in self._computed(node):
            read = [name for name in dict.fromkeys(each.inputs) if name in self._rounded]
            own = {name: f"{name}/for/{each.outputs[0]}" for name in read}
            made += [self._reading(name, own[name]) for name in read]
            made.append(replace(each, inputs=tuple(own.get(name, name) for name in each.inputs)))
        return made

    def _reading(self, rounded: str, to: str) -> Node:
        """Return the node that reads a rounded value in single precision."""
        steps = self._rounded[rounded]
        function = partial(_dequantize, *self._grids[steps])
        return _Call("DequantizeLinear", (steps,), (to,), {}, function)

    def _computed(self, node: Node) -> list[Node]:
        """Return the nodes that compute what a node does; they read values by their old names."""
        if node.kind == "QuantizeLinear":
            return [self._quantised(node)]
        if node.kind == "DequantizeLinear":
            return self._dequantised(node)
        if node.kind in _LAYERS and node.inputs[1] in self._weights:
            return self._layer(node)
        return [node]

    def _quantised(self, node: Node) -> Node:
        grid = self._grid(node)
        source, *_ = node.inputs
        [result] = node.outputs
        users = self._users.get(result, [])
        if (
            grid is None
            or result == self._output
            or any(self._grid(user) != grid for user in users)
        ):
            return node
        grid = self._style.grids.get(self._kinds.get(source, ""), grid)
        self._grids[result] = grid
        return _Call(node.kind, (source,), node.outputs, {}, partial(_quantize, *grid))

    def _grid(self, node: Node) -> tuple[float, int] | None:
        """Return the scale and the zero point in int8 of a rounding node, if it has one of each."""
        if node.kind not in ("QuantizeLinear", "DequantizeLinear"):
            return None
        scale = self.constants.get(node.inputs[1])
        zero = self.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
        if not isinstance(zero, Tensor) or zero.dtype not in _TO_SIGNED or zero.numel() != 1:
            return None
        if scale is None or torch.as_tensor(scale).numel() != 1:
            return None
        return float(scale), int(zero) + _TO_SIGNED[zero.dtype]

    def _dequantised(self, node: Node) -> list[Node]:
        source, (result, *_) = node.inputs[0], node.outputs
        if source in self._grids:
            self._rounded[result] = source
            return [self._reading(result, result)] if result == self._output else []
        if source not in self.constants:
            return [node]
        values = [self.constants[name] if name else None for name in node.inputs]
        self.constants[result] = OPERATORS[node.kind](node.attributes, *values)
        weights = values[0]
        if isinstance(weights, Tensor) and weights.dtype == torch.int8:
            self._weights[result] = node
        return []

    def _layer(self, node: Node) -> list[Node]:
        """Return a layer with a scale for each output, if it can have one, and its weights."""
        source, weights, *bias = node.inputs
        rounding = self._weights[weights]
        steps, scale = (self.constants[name] for name in rounding.inputs[:2])
        zero = self.constants[rounding.inputs[2]] if len(rounding.inputs) > 2 else torch.zeros(1)
        flipped = node.kind == "MatMul" or (
            node.kind == "Gemm" and not node.attributes.get("transB")
        )
        axis = rounding.attributes.get("axis", 1) % steps.dim()
        of_outputs = int(flipped) if node.kind != "Conv" else 0
        if (
            source not in self._rounded
            or not _is_linear(node, steps)
            or torch.as_tensor(zero).any()
            or (scale.numel() > 1 and axis != of_outputs)
        ):
            return [node]
        steps = (steps.t() if flipped else steps).contiguous()
        name = f"{node.outputs[0]}/weights"
        of_each = scale.float().flatten().expand(len(steps)).contiguous()
        made = {
            "steps": steps,
            "scales": of_each,
            "zeros": torch.zeros(len(steps), dtype=torch.int64),
        }
        self.constants |= {f"{name}/{kind}": tensor for kind, tensor in made.items()}
        inputs = tuple(f"{name}/{kind}" for kind in made)
        function: Callable[..., Tensor] = _dequantize_weights
        if not self._style.folded:
            shape = [-1] + [1] * (steps.dim() - 1)
            self.constants[inputs[0]] = steps.float() * of_each.reshape(shape)
            function = _rounded_weights
        read = _Call("DequantizeLinear", inputs, (name,), {}, function)
        if node.kind == "Conv":
            return [read, Node(node.kind, (source, name, *bias), node.outputs, node.attributes)]
        return [read, _Call(node.kind, (source, name, *bias), node.outputs, {}, functional.linear)]


def _is_linear(node: Node, weights: Tensor) -> bool:
    """Return whether a layer is a convolution, or a matrix product with no factors."""
    if node.kind == "Conv":
        return True
    factors: Mapping[str, Any] = node.attributes
    plain = factors.get("alpha", 1.0) == factors.get("beta", 1.0) == 1.0
    return weights.dim() == 2 and plain and not factors.get("transA")


def _quantize(scale: float, zero: int, x: Tensor) -> Tensor:
    rounded: Tensor = torch.ops.quantized_decomposed.quantize_per_tensor.default(
        x, scale, zero, *_ACTIVATIONS
    )
    return rounded


def _dequantize(scale: float, zero: int, steps: Tensor) -> Tensor:
    values: Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor.default(
        steps, scale, zero, *_ACTIVATIONS
    )
    return values


def _rounded_weights(weights: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    steps: Tensor = torch.ops.quantized_decomposed.quantize_per_channel.default(
        weights, scales, zeros, 0, *_WEIGHTS
    )
    return _dequantize_weights(steps, scales, zeros)


def _dequantize_weights(steps: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    values: Tensor = torch.ops.quantized_decomposed.dequantize_per_channel.default(
        steps, scales, zeros, 0, *_WEIGHTS
    )
    return values
