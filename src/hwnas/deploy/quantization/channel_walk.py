"""Channels of a network that can be scaled or rotated without a change of its outputs.

Some tensors can be multiplied along their channels by a linear map that cancels again: layers write
them, other layers read them, and all operators between commute with the map. Layers that write are
multiplied by the map, layers that read by its inverse. Which operators commute depends on the map:

- positive scales commute with ReLU, pooling and gates, and add up in residual connections;
- rotations commute with sums, averages and, if they keep the vector of ones, with the
  normalisation of a LayerNorm. They need whole channels, so no ReLU and no depthwise convolution;
- both pass the values of an attention to its output projection, and cancel between queries and
  keys, if keys get the inverse of the transpose.

Such tensors are found by a walk from a layer's output, which ends without a result at the first
operator that does not commute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from hwnas.deploy.onnx.graph import attributes_of
from hwnas.deploy.quantization.float_graph import FloatGraph, LinearLayer
from hwnas.deploy.quantization.mapped_channels import AddedConstant, Ids, MappedChannels, Port

__all__ = ["mappable_channels"]

Kind = Literal["scale", "rotation"]

_SAME_SHAPE = ("Identity", "Dropout")
_POSITIVE = ("Relu", "LeakyRelu")
_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_AVERAGES = ("AveragePool", "GlobalAveragePool")


class _CannotMapError(Exception):
    """An operator that does not commute with the map."""


def mappable_channels(graph: FloatGraph, kind: Kind) -> list[MappedChannels]:
    """Return all tensors of a network whose channels can be scaled or rotated, place by place."""
    found, seen = [], set[str]()
    for tensor, size in _starts(graph, kind):
        if tensor in seen:
            continue
        walk = _Walk(graph, kind, size)
        try:
            mapped = walk.mapped_from(tensor)
        except _CannotMapError:
            continue
        finally:
            seen |= set(walk.mapped.tensors)
        if mapped.readers or -1 in mapped.signs.values():
            found.append(mapped)
    return found


def _starts(graph: FloatGraph, kind: Kind) -> Iterator[tuple[str, int]]:
    """Yield the outputs of layers, and of LayerNorms for scales, with their number of channels."""
    for node in graph.model.graph.node:
        layer = graph.linear(node)
        if layer is not None:
            yield node.output[0], graph.shapes[node.output[0]][layer.axis]
        elif node.op_type == "LayerNormalization" and kind == "scale":
            yield node.output[0], graph.shapes[node.output[0]][-1]


class _Walk:
    """Walk over tensors that have to be mapped together, forwards and backwards."""

    def __init__(self, graph: FloatGraph, kind: Kind, size: int) -> None:
        self._graph, self._kind = graph, kind
        self.mapped = MappedChannels(size)
        self._passed = set[str]()  # first outputs of the nodes that were passed
        self._outside = set[str]()
        self._queue: list[str] = []

    def mapped_from(self, tensor: str) -> MappedChannels:
        """Return all that is mapped with a layer's output; raise _CannotMapError if not exact."""
        node = self._graph.makers[tensor]
        layer = self._graph.linear(node)
        shape = self._graph.shapes[tensor]
        axis = -1 if layer is None else layer.axis
        self._put(tensor, _along(np.arange(shape[axis], dtype=np.int32), shape, axis), 1)
        while self._queue:
            name = self._queue.pop()
            self._backward(name)
            for user in self._graph.users.get(name, ()):
                if user.op_type != "Shape" and user.output[0] not in self._passed:
                    self._forward(name, user)
        if self._outside & set(self.mapped.tensors):
            raise _CannotMapError
        return self.mapped

    def _put(self, tensor: str, ids: Ids, sign: int) -> None:
        """Add a tensor, or check that it is there with the same channels."""
        known = self.mapped.tensors.get(tensor)
        if known is not None:
            if self.mapped.signs[tensor] != sign or not np.array_equal(known, ids):
                raise _CannotMapError
            return
        if tensor in self._graph.outputs or ids.shape != self._graph.shapes.get(tensor):
            raise _CannotMapError
        self.mapped.tensors[tensor], self.mapped.signs[tensor] = ids, sign
        self._queue.append(tensor)

    def _backward(self, tensor: str) -> None:
        node = self._graph.makers.get(tensor)
        if node is None:
            raise _CannotMapError
        if node.output[0] in self._passed:
            return
        ids, sign = self.mapped.tensors[tensor], self.mapped.signs[tensor]
        if (layer := self._graph.linear(node)) is not None:
            self._port(self.mapped.writers, layer, _vector(ids, layer.axis), sign)
        elif node.op_type == "LayerNormalization" and self._kind == "scale":
            self._norm(node, ids, sign)
        elif node.op_type in _RESHAPES:
            self._pass(node)
            self._put(node.input[0], ids.reshape(self._graph.shapes[node.input[0]]), sign)
        elif node.op_type == "Transpose":
            self._pass(node)
            order = np.argsort(attributes_of(node)["perm"])
            self._put(node.input[0], ids.transpose(order), sign)
        elif node.op_type == "MatMul":
            self._pass(node)
            values, rest = node.input[1], _constant_over(ids, -2)
            self._blocks_of(rest)
            self._put(values, np.broadcast_to(rest, self._graph.shapes[values]), sign)
            self._outside.add(node.input[0])
        else:
            self._same_shape(node, ids, sign)

    def _forward(self, tensor: str, node: Any) -> None:
        ids, sign = self.mapped.tensors[tensor], self.mapped.signs[tensor]
        kind, to = node.op_type, node.output[0]
        if (layer := self._graph.linear(node)) is not None:
            self._port(self.mapped.readers, layer, _vector(ids, layer.axis), sign)
        elif kind in _RESHAPES and tensor == node.input[0]:
            self._pass(node)
            self._put(to, ids.reshape(self._graph.shapes[to]), sign)
        elif kind == "Transpose":
            self._pass(node)
            self._put(to, ids.transpose(attributes_of(node)["perm"]), sign)
        elif kind in _AVERAGES or (kind == "MaxPool" and self._kind == "scale"):
            self._pass(node)
            self._put(to, _along(_vector(ids, 1), self._graph.shapes[to], 1), sign)
        elif kind == "ReduceMean":
            self._pass(node)
            less = _constant_over(ids, *self._reduced(node, ids.ndim))
            self._put(to, less.reshape(self._graph.shapes[to]), sign)
        elif kind == "MatMul":
            self._attention(tensor, node, ids, sign)
        else:
            self._same_shape(node, ids, sign)

    def _same_shape(self, node: Any, ids: Ids, sign: int) -> None:
        """Pass an operator with one output, all of whose mapped inputs have its shape."""
        self._pass(node)
        kind, constants = node.op_type, self._graph.constants
        if kind in _SAME_SHAPE or (kind in _POSITIVE and self._kind == "scale"):
            self._put(node.input[0], ids, sign)
        elif kind == "Add":
            for name in node.input:
                if name in constants:
                    self._add(name, ids, sign)
                else:
                    self._put(name, ids, sign)
        elif kind in ("Mul", "Div"):
            self._gated(node, ids, sign)
        elif kind == "LayerNormalization" and self._kind == "rotation":
            self._norm(node, ids, sign)
            self._put(node.input[0], ids, sign)
        else:
            raise _CannotMapError
        self._put(node.output[0], ids, sign)

    def _gated(self, node: Any, ids: Ids, sign: int) -> None:
        """Pass a product with a constant, or for scales with a tensor of smaller shape."""
        values, gate = node.input
        if node.op_type == "Mul" and self._graph.shapes.get(values) != ids.shape:
            values, gate = gate, values
        constant = self._graph.constants.get(gate)
        size = np.prod(self._graph.shapes.get(gate, ())) if constant is None else constant.size
        if size > 1 and (self._kind == "rotation" or size == ids.size):
            raise _CannotMapError
        if constant is None:
            self._outside.add(gate)
        self._put(values, ids, sign)

    def _norm(self, node: Any, ids: Ids, sign: int) -> None:
        """Take the scale and bias of a LayerNorm over the channels as added constants."""
        last = ids.ndim - 1
        if attributes_of(node).get("axis", -1) % ids.ndim != last:
            raise _CannotMapError
        if len(node.output) > 1 or not set(node.input[1:]) <= self._graph.constants.keys():
            raise _CannotMapError
        scale, *bias = node.input[1:]
        if self._kind == "rotation":
            self.mapped.norms.append(scale)
        for name in [*bias, *([scale] if self._kind == "scale" else [])]:
            self._add(name, ids, sign)

    def _attention(self, tensor: str, node: Any, ids: Ids, sign: int) -> None:
        """Pass the values of an attention, or cancel between its queries and keys."""
        left, right = node.input
        self._pass(node)
        if left == right:
            raise _CannotMapError
        if tensor == right and _is_constant_over(ids, -2):
            rest = _constant_over(ids, -2)
            self._blocks_of(rest)
            shape = self._graph.shapes[node.output[0]]
            self._put(node.output[0], np.broadcast_to(rest, shape), sign)
            self._outside.add(left)
            return
        partner, over = (left, -1) if tensor == right else (right, -2)
        inner = np.swapaxes(_constant_over(ids, over), -1, -2)
        self._blocks_of(inner)
        self._put(partner, np.broadcast_to(inner, self._graph.shapes[partner]), -sign)

    def _blocks_of(self, ids: Ids) -> None:
        """Note which channels an attention head has; others may not be mixed with them."""
        width = max(ids.shape[-1], ids.shape[-2])
        blocks = sorted((np.sort(each) for each in ids.reshape(-1, width)), key=lambda b: b[0])
        found = [each for i, each in enumerate(blocks) if i == 0 or each[0] != blocks[i - 1][0]]
        known = self.mapped.blocks
        if known and not all(map(np.array_equal, known, found)):
            raise _CannotMapError
        self.mapped.blocks = found

    def _port(self, ports: list[Port], layer: LinearLayer, ids: Ids, sign: int) -> None:
        if self._kind == "rotation" and layer.groups > 1:
            raise _CannotMapError
        ports.append(Port(layer, ids, sign))

    def _add(self, name: str, ids: Ids, sign: int) -> None:
        shape = (1,) * (ids.ndim - self._graph.constants[name].ndim)
        shape += self._graph.constants[name].shape
        over = [axis for axis, size in enumerate(shape) if size == 1 and ids.shape[axis] > 1]
        own = _constant_over(ids, *over).reshape(self._graph.constants[name].shape)
        self.mapped.added.append(AddedConstant(name, own, sign))

    def _pass(self, node: Any) -> None:
        self._passed.add(node.output[0])

    def _reduced(self, node: Any, rank: int) -> tuple[int, ...]:
        given = attributes_of(node).get("axes")
        if len(node.input) > 1:
            given = self._graph.constants.get(node.input[1])
        if given is None:
            raise _CannotMapError
        return tuple(int(axis) % rank for axis in given)


def _along(vector: Ids, shape: tuple[int, ...], axis: int) -> Ids:
    """Return the channel numbers of a tensor whose channels are along one axis."""
    form = [1] * len(shape)
    form[axis] = -1
    return np.broadcast_to(vector.reshape(form), shape)


def _is_constant_over(ids: Ids, *axes: int) -> bool:
    return bool((ids == _first(ids, axes)).all())


def _constant_over(ids: Ids, *axes: int) -> Ids:
    """Return channel numbers that do not vary along axes, with a size of 1 there."""
    if not _is_constant_over(ids, *axes):
        raise _CannotMapError
    return _first(ids, axes)


def _first(ids: Ids, axes: tuple[int, ...]) -> Ids:
    single = {axis % ids.ndim for axis in axes}
    return ids[tuple(slice(0, 1) if axis in single else slice(None) for axis in range(ids.ndim))]


def _vector(ids: Ids, axis: int) -> Ids:
    """Return the channel numbers along an axis, on which alone they depend."""
    others = [other for other in range(ids.ndim) if other != axis % ids.ndim]
    return _constant_over(ids, *others).reshape(-1)
