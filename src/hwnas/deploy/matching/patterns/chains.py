"""Rules that fuse chains of small steps into one kernel: pooling, and rounding between layers.

`hwnas.kernels.codegen.fusion` generates the kernels from the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hwnas.deploy.matching.graph import Graph, OperatorCall, Rewrite, Step, is_node
from hwnas.deploy.matching.patterns.quantised import (
    QuantisationParameters,
    rounding_after,
    steps_of,
    stored_as,
)
from hwnas.deploy.onnx.module import Node
from hwnas.kernels.codegen.fusion import fuse
from hwnas.kernels.codegen.pieces import (
    BoundStep,
    add,
    dequantize,
    layer_norm,
    multiply,
    pixel_max,
    pixel_mean,
    quantize,
    softmax,
)
from hwnas.kernels.codegen.steps import named_operands

__all__ = [
    "Rounded",
    "chain_pooling",
    "chain_product",
    "chain_rounding",
    "gather_rounding",
    "normalisation",
]

_POOLS = {"GlobalAveragePool": pixel_mean, "ReduceMean": pixel_mean, "ReduceMax": pixel_max}
_NO_MAPS = ("MatMul", "Reshape", "Softmax", "Transpose")


@dataclass(frozen=True)
class Rounded(Node):
    """Node that quantises floats to int8 and dequantises them again (fake quantisation).

    Its attribute ``steps`` holds the quantisation parameters.
    """

    def run(self, arguments: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the output by name."""
        [x], steps = arguments, self.attributes["steps"]
        y = torch.fake_quantize_per_tensor_affine(x.float(), steps.scale, steps.zero, -128, 127)
        return {self.outputs[0]: y}


def chain_pooling(graph: Graph, step: Step) -> Rewrite | None:
    """Fuse the mean or maximum over all pixels into a chain.

    If the map is dequantised before and the result is quantised after, both are part of the chain.
    Otherwise a layer normalisation before the pooling is part of the chain if nothing else reads
    its output.
    """
    if not is_node(step, *_POOLS) or not _is_over_pixels(graph, step):
        return None
    pool = _POOLS[step.kind]()
    before, after = stored_as(graph, step.inputs[0]), rounding_after(graph, step.outputs[0])
    pieces, x, old, norm = [pool], step.inputs[0], [step], graph.maker(step.inputs[0])
    if before is not None and after is not None:
        pieces = [_from(before[1]), pool, _to(after[1])]
        return _pooled(graph, before[0], pieces, [step, after[0]], True)
    normalise = _layer_norm(graph, norm)
    if normalise is not None and graph.reader(x) is step and is_node(norm):
        pieces, x, old = [normalise, pool], norm.inputs[0], [norm, step]
    return _pooled(graph, x, pieces, old, False)


def chain_rounding(graph: Graph, step: Step) -> Rewrite | None:
    """Replace a quantisation to int8, and a normalisation or softmax before it, by a chain."""
    steps = steps_of(graph, step)
    if steps is None or not is_node(step, "QuantizeLinear"):
        return None
    x = step.inputs[0]
    maker = graph.maker(x)
    source = stored_as(graph, maker.inputs[0]) if is_node(maker) else None
    piece = _layer_norm(graph, maker) or _softmax(graph, maker)
    if source is not None and piece is not None and graph.reader(x) is step and is_node(maker):
        pieces = [_from(source[1]), piece, _to(steps)]
        call = _call(pieces, {"x": source[0]}, step.outputs, [maker, step], int8=True)
        return Rewrite([maker, step], [call])
    maps = len(graph.shapes[x]) == 4 and not is_node(maker, *_NO_MAPS)
    call = _call([_to(steps)], {"x": x}, step.outputs, [step], maps)
    if x == graph.input:  # the input is float32, and must not be rounded to half precision first
        call = replace(call, dtype=torch.float32)
    return Rewrite([step], [call])


def chain_product(graph: Graph, step: Step) -> Rewrite | None:
    """Replace a rounded product or sum of two int8 values by chains.

    The gate of a squeeze-excite is such a product.
    """
    if not is_node(step, "Mul", "Add"):
        return None
    after = rounding_after(graph, step.outputs[0])
    sources = [stored_as(graph, name) for name in step.inputs]
    known = [each for each in sources if each is not None]
    if after is None or len(known) < 2:
        return None
    known.sort(key=lambda each: graph.shapes[each[0]] != graph.shapes[step.outputs[0]])
    (x, of_x), (other, of_other) = known
    shape, shape_of_other = graph.shapes[x], graph.shapes[other]
    per_image = len(shape) == 4 and shape_of_other == (*shape[:2], 1, 1) and shape[2:] != (1, 1)
    if shape_of_other != shape and not per_image:
        return None
    piece, maps = {"Mul": multiply, "Add": add}[step.kind], len(shape) == 4
    floats, flat = f"{step.outputs[0]}/{other}", f"{step.outputs[0]}/{other}/flat"
    new: list[Step] = []
    shapes = {floats: shape_of_other}
    if per_image:
        new.append(Node("Flatten", (other,), (flat,), {"axis": 1}))
        shapes = {flat: shape[:2], floats: shape[:2]}
        other = flat
    new.append(_call([_from(of_other)], {"x": other}, (floats,), [], maps and not per_image, True))
    pieces = [_from(of_x), piece(per="image" if per_image else "value"), _to(after[1])]
    reads = {"x": x, "other_1": floats}
    new.append(_call(pieces, reads, after[0].outputs, [step, after[0]], maps, True))
    return Rewrite([step, after[0]], new, shapes)


def gather_rounding(graph: Graph, step: Step) -> Rewrite | None:
    """Replace a quantisation whose readers all dequantise by one `Rounded` node for each reader."""
    steps, readers = steps_of(graph, step), graph.readers(step.outputs[0])
    if steps is None or not is_node(step, "QuantizeLinear") or step.inputs[0] == graph.input:
        return None
    if not readers or not all(steps_of(graph, each) == steps for each in readers):
        return None
    new = [Rounded("Rounded", step.inputs[:1], each.outputs, {"steps": steps}) for each in readers]
    return Rewrite([step, *readers], new)


def normalisation(x: str, output: str, channels: int, epsilon: float) -> OperatorCall:
    """Return a chain that normalises the channels of each pixel, without scale and shift."""
    piece = layer_norm(torch.ones(channels), torch.zeros(channels), epsilon)
    return replace(_call([piece], {"x": x}, (output,), []), nodes=("LayerNormalization",))


def _pooled(
    graph: Graph, x: str, pieces: Sequence[BoundStep], old: Sequence[Node], int8: bool
) -> Rewrite:
    """Return the rewrite to a chain whose result is one value for each channel of an image.

    The result gets the shape of the output of the last old node.
    """
    [output] = old[-1].outputs
    shape = graph.shapes[output]
    maps = len(graph.shapes[x]) == 4
    if len(shape) == 2:
        return Rewrite(old, [_call(pieces, {"x": x}, (output,), old, maps, int8)])
    flat, sizes = f"{output}/flat", f"{output}/sizes"
    call = _call(pieces, {"x": x}, (flat,), old, maps, int8)
    view = Node("Reshape", (flat, sizes), (output,), {})
    return Rewrite(old, [call, view], {flat: shape[:2]}, {sizes: list(shape)})


def _is_over_pixels(graph: Graph, node: Node) -> bool:
    """Return whether a node reduces all dimensions except images and channels.

    Channels are the last dimension of tokens, which have three dimensions.
    """
    dimensions = len(graph.shapes[node.inputs[0]])
    if node.kind == "GlobalAveragePool":
        return dimensions == 4
    axes = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = node.attributes.get("axes") if axes is None else axes
    if not isinstance(axes, list) or dimensions not in (3, 4):
        return False
    wanted = [2, 3] if dimensions == 4 else [1]
    flat = dimensions == 4 or not node.attributes.get("keepdims", 1)
    return sorted(axis % dimensions for axis in axes) == wanted and flat


def _layer_norm(graph: Graph, step: Step | None) -> BoundStep | None:
    """Return the piece for a normalisation of the channels of each pixel, or None."""
    if not is_node(step, "LayerNormalization"):
        return None
    weight, dimensions = graph.tensor(step.inputs[1]), len(graph.shapes[step.inputs[0]])
    if weight is None or step.attributes.get("axis", -1) % dimensions != dimensions - 1:
        return None
    shift = graph.tensor(step.inputs[2]) if len(step.inputs) > 2 else None
    shift = torch.zeros_like(weight) if shift is None else shift
    return layer_norm(weight.float(), shift.float(), step.attributes.get("epsilon", 1e-5))


def _softmax(graph: Graph, step: Step | None) -> BoundStep | None:
    if not is_node(step, "Softmax"):
        return None
    dimensions = len(graph.shapes[step.inputs[0]])
    return softmax() if step.attributes.get("axis", -1) % dimensions == dimensions - 1 else None


def _from(steps: QuantisationParameters) -> BoundStep:
    return dequantize(steps.scale, steps.zero)


def _to(steps: QuantisationParameters) -> BoundStep:
    return quantize(steps.scale, steps.zero)


def _call(
    pieces: Sequence[BoundStep],
    reads: Mapping[str, str],
    outputs: tuple[str, ...],
    nodes: Sequence[Node],
    maps: bool = False,
    int8: bool = False,
) -> OperatorCall:
    """Return the call of a chain, with the values of its pieces as weights and options."""
    chain = fuse(*pieces).chain
    values = [value for piece in pieces for value in piece.values]
    given = dict(zip(named_operands(chain.steps), values, strict=True))
    weights = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    options: dict[str, Any] = {
        name: value for name, value in given.items() if isinstance(value, float)
    }
    kinds = tuple(node.kind for node in nodes)
    dtype = torch.int8 if int8 else None
    return OperatorCall(chain, reads, weights, options, outputs, kinds, maps, dtype)
