"""Rule for recurrent layers: an LSTM or GRU as one product and one kernel for all its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hwnas.deploy.matching.graph import Graph, OperatorCall, Rewrite, Shape, Step, is_node
from hwnas.deploy.onnx.module import Node
from hwnas.deploy.onnx.recurrent import gates_in_order
from hwnas.kernels.operators.pointwise import pointwise
from hwnas.kernels.operators.recurrent import GRU, LSTM, WIDEST, recurrent

__all__ = ["match_recurrent"]

_GATES = {"LSTM": LSTM, "GRU": GRU}
_LEAST = 16  # channels of a head, which tensor cores need at least
_TURNED = [1, 0, 2]  # (T, N, I) to (N, T, I), and back


@dataclass(frozen=True)
class _Weights:
    """Weights of a layer with one direction, in the layouts of the operators.

    Attributes:
        given: Weight of the input, (I, gates H).
        bias: Biases that are added to the product with the input, (gates H,).
        recurrent: Recurrent weights, (h, gates, d, d), as `recurrent` takes them.
        inner: Bias of a GRU inside of the product with the reset gate, (H,), or None.
    """

    given: Tensor
    bias: Tensor
    recurrent: Tensor
    inner: Tensor | None

    @classmethod
    def of(cls, graph: Graph, node: Node) -> _Weights | str:
        """Return the weights of a node, or the reason why the operator does not take them."""
        weight, recurrence = (graph.tensor(name) for name in node.inputs[1:3])
        name = (*node.inputs, "")[3]
        bias = graph.tensor(name)
        if weight is None or recurrence is None or (name and bias is None):
            return "its weights are not constants"
        gates, channels = _GATES[node.kind], recurrence.shape[2]
        given, own = torch.zeros(2, gates * channels) if bias is None else bias[0].chunk(2)
        given, own = (gates_in_order(node.kind, part.float()) for part in (given, own))
        inner = None
        if node.kind == "GRU":  # that of the candidate is inside of the product with the reset gate
            inner = own[-channels:] if own[-channels:].any() else None
            own = torch.cat((own[:-channels], torch.zeros(channels)))
        heads = _heads(gates_in_order(node.kind, recurrence[0].float()), gates)
        if heads is None:
            return f"its {channels} channels are one head; the operator takes up to {WIDEST} a head"
        packed = gates_in_order(node.kind, weight[0].float()).T.contiguous()
        return cls(packed, given + own, heads, inner)


def match_recurrent(graph: Graph, step: Step) -> Rewrite | str | None:
    """Match an LSTM or GRU with one direction to a product and `recurrent`.

    Recurrent weights that are blocks on the diagonal become heads.
    """
    if not is_node(step, *_GATES):
        return None
    if step.attributes.get("direction", "forward") != "forward":
        return f"its direction is {step.attributes['direction']}; the operator runs forwards"
    weights = _Weights.of(graph, step)
    if isinstance(weights, str):
        return weights
    name, (steps, images, inputs) = step.outputs[0], graph.shapes[step.inputs[0]]
    gates = _GATES[step.kind]
    channels = weights.given.shape[1] // gates
    new = _Replacement(name)
    x = new.view("Transpose", step.inputs[0], "x", (images, steps, inputs), perm=_TURNED)
    product = new.call(
        OperatorCall(
            pointwise,
            {"x": x},
            {"weight": weights.given, "bias": weights.bias},
            {},
            (f"{name}/product",),
            (step.kind,),
        ),
        (images, steps, gates * channels),
    )
    by_gate = new.view("Reshape", product, "gates", (images, steps, gates, channels))
    own = {"weight": weights.recurrent}
    own |= {} if weights.inner is None else {"bias": weights.inner}
    reads = {"x": by_gate, **_first_states(graph, step, new)}
    outputs = (f"{name}/states", f"{name}/last")
    states = new.call(
        OperatorCall(recurrent, reads, own, {}, outputs, (step.kind,)),
        *((images, steps, channels), (images, channels)),
    )
    _add_results(step, states, outputs[1], new)
    return Rewrite([step], new.steps, new.shapes, new.constants, alternative=True)


class _Replacement:
    """Steps that replace a node, with the shapes and constants that are new.

    Args:
        name: Name of the node's output, with which new names begin.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.steps: list[Step] = []
        self.shapes: dict[str, Shape] = {}
        self.constants: dict[str, Any] = {}

    def view(self, kind: str, x: str, output: str, shape: Shape, **attributes: Any) -> str:
        """Add a view of x with a given shape, and return its full name."""
        made = f"{self._name}/{output}"
        self.shapes[made] = shape
        return self.result(kind, x, made, list(shape) if kind == "Reshape" else None, **attributes)

    def result(self, kind: str, x: str, output: str, second: Any = None, **attributes: Any) -> str:
        """Add a node that computes a named value of x and perhaps a constant; return the name."""
        inputs: tuple[str, ...] = (x,)
        if second is not None:
            inputs = (x, f"{output}/{kind}")
            self.constants[inputs[1]] = second
        self.steps.append(Node(kind, inputs, (output,), attributes))
        return output

    def call(self, call: OperatorCall, *shapes: Shape) -> str:
        """Add a call with outputs of given shapes, and return the name of the first output."""
        self.steps.append(call)
        self.shapes |= dict(zip(call.outputs, shapes, strict=True))
        return call.outputs[0]


def _first_states(graph: Graph, node: Node, new: _Replacement) -> dict[str, str]:
    """Add views of the states before the first step, and return them by argument.

    States that are zero are left out.
    """
    reads = {}
    for argument, source in zip(("hidden", "cell"), node.inputs[5:7], strict=False):
        constant = graph.tensor(source)
        if source and (constant is None or constant.any()):
            reads[argument] = new.view("Reshape", source, argument, graph.shapes[source][1:])
    return reads


def _add_results(node: Node, states: str, last: str, new: _Replacement) -> None:
    """Add views that give the node's outputs: all outputs, the last ones and the last states."""
    images, steps, channels = new.shapes[states]
    y, hidden, cell = (*node.outputs, "", "")[:3]
    apart = new.view("Reshape", states, "apart", (images, steps, 1, channels))
    new.result("Transpose", apart, y, perm=[1, 2, 0, 3])
    if hidden and node.kind == "GRU":
        new.result("Unsqueeze", last, hidden, [0])
    elif hidden:
        final = new.result("Gather", states, f"{y}/final", -1, axis=1)
        new.shapes[final] = (images, channels)
        new.result("Unsqueeze", final, hidden, [0])
    if cell:
        new.result("Unsqueeze", last, cell, [0])


def _heads(recurrence: Tensor, gates: int) -> Tensor | None:
    """Return recurrent weights (gates H, H) as (h, gates, d, d), with the narrowest heads.

    The weights outside of these blocks are zero. The result is None if a head is too wide.
    """
    channels = recurrence.shape[1]
    for width in range(min(_LEAST, channels), min(WIDEST, channels) + 1):
        if channels % width:
            continue
        heads = channels // width
        blocks = recurrence.reshape(gates, heads, width, heads, width)
        diagonal = torch.diagonal(blocks, dim1=1, dim2=3).permute(3, 0, 1, 2)
        if diagonal.count_nonzero() == recurrence.count_nonzero():
            return diagonal.contiguous()
    return None
