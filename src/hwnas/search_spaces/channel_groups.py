"""Which layers of a network have to have the same channels, found by following tensors.

The model is traced with torch.fx and run on the meta device, so nothing is computed. Along each
tensor goes what its channels are made of. A convolution or linear layer makes channels of its own;
an addition ties those of its terms; a concatenation strings them together; flattening repeats each
for its pixels. What an operator that is not known here does with channels is not guessed: all that
reach it keep their number, and the reason is kept with them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from math import lcm, prod
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import is_parametrized

from hwnas.search_spaces.channel_trace import traced

__all__ = ["Axis", "ChannelGroup", "Segment", "Wiring", "channel_groups"]


@dataclass(frozen=True)
class Segment:
    """A run of elements along an axis.

    Attributes:
        group: Index of the channel group that they are of.
        repeat: Elements for each channel, such as the pixels of a feature map that was flattened.
    """

    group: int
    repeat: int = 1


@dataclass(frozen=True)
class Axis:
    """One side of a layer.

    Attributes:
        module: Its name in the model.
        side: What it takes, or makes; a depthwise convolution or a normalisation has ``"both"``.
        segments: What the elements of the side are, in order.
    """

    module: str
    side: Literal["in", "out", "both"]
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class ChannelGroup:
    """Channels that are one number wherever they occur.

    Attributes:
        name: Of the first layer that makes them; that of the input is ``"input"``.
        channels: How many there are in the model as it is.
        multiple: Their number has to be a multiple of this.
        fixed: Why their number cannot be changed; empty where it can.
    """

    name: str
    channels: int
    multiple: int = 1
    fixed: str = ""


@dataclass(frozen=True)
class Wiring:
    """The channel groups of a model, and where they are.

    Attributes:
        groups: In the order in which they are made.
        axes: Every side of every layer whose size depends on them.
    """

    groups: tuple[ChannelGroup, ...]
    axes: tuple[Axis, ...]


def channel_groups(model: nn.Module, example: Tensor) -> Wiring:
    """Find the channel groups of a model.

    Args:
        model: Takes one tensor of shape (N, C, H, W), or (N, C). It is left as it was.
        example: Such a tensor; only its shape matters.

    Raises:
        ConfigError: The model cannot be traced, or does not take the example.
    """
    graph, shapes = traced(model, example)
    follower = _Follower(graph, shapes)
    for node in graph.graph.nodes:
        follower.visit(node)
    return follower.wiring()


Layout = tuple[Segment, ...]

_KEEPING = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Identity,
    nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d, nn.Upsample, nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d,
)  # fmt: skip
"""Modules that treat every channel alike and on its own."""

_KEEPING_CALLS: tuple[Any, ...] = (
    functional.relu, functional.relu6, functional.leaky_relu, functional.elu, functional.gelu,
    functional.silu, functional.mish, functional.hardswish, functional.hardsigmoid,
    functional.hardtanh, functional.sigmoid, functional.tanh, functional.dropout,
    functional.dropout2d, functional.max_pool2d, functional.avg_pool2d,
    functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d, functional.interpolate,
    torch.relu, torch.relu_, torch.sigmoid, torch.tanh, torch.clamp, torch.abs, torch.neg,
    operator.neg,
    "relu", "relu_", "sigmoid", "sigmoid_", "tanh", "clamp", "clamp_", "contiguous", "clone",
    "detach", "abs", "float",
)  # fmt: skip
_TERMS: tuple[Any, ...] = (
    operator.add, operator.iadd, operator.sub, operator.isub, operator.mul, operator.imul,
    operator.truediv, torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum,
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_",
)  # fmt: skip
_REDUCTIONS: tuple[Any, ...] = (torch.mean, torch.amax, torch.sum, "mean", "amax", "sum")
_SIZES: tuple[Any, ...] = (getattr, "size", "dim")


class _Follower:
    """Goes through a graph in order and ties channels that belong together."""

    def __init__(self, model: fx.GraphModule, shapes: dict[fx.Node, torch.Size]) -> None:
        self._modules = dict(model.named_modules())
        self._shapes = shapes
        self._layouts: dict[fx.Node, Layout] = {}
        self._groups: list[ChannelGroup] = []
        self._parent: list[int] = []
        self._sides: dict[tuple[str, str], Layout] = {}

    def visit(self, node: fx.Node) -> None:
        """Note what the channels of a node's result are."""
        if node.op == "output":
            self._fix(node.all_input_nodes, "they are the model's outputs")
        elif node in self._shapes:
            layout = self._follow(node)
            if layout is None or self._length(layout) != self._channels_of(node):
                what = node.target if isinstance(node.target, str) else _name(node.target)
                self._fix(node.all_input_nodes, f"{node.op.replace('_', ' ')} {what}")
                layout = self._new(str(node.name), self._channels_of(node), f"made by {what}")
            self._layouts[node] = layout

    def wiring(self) -> Wiring:
        """What was found, with groups that are tied made one."""
        roots = sorted({self._root(i) for i in range(len(self._groups))})
        place = {root: i for i, root in enumerate(roots)}

        def final(layout: Layout) -> Layout:
            return tuple(Segment(place[self._root(s.group)], s.repeat) for s in layout)

        axes = [Axis(*key, final(layout)) for key, layout in self._sides.items()]  # type: ignore[arg-type]
        return Wiring(tuple(self._groups[root] for root in roots), tuple(axes))

    # What each kind of node does

    def _follow(self, node: fx.Node) -> Layout | None:
        """The layout of a node's result; None where it is not known."""
        if node.op == "placeholder":
            return self._new("input", self._channels_of(node), "they are the model's input")
        if node.op == "get_attr":
            return self._new(str(node.target), self._channels_of(node), "they are of a parameter")
        if node.op == "call_module":
            return self._module(str(node.target), node)
        tensors = [n for n in node.all_input_nodes if n in self._layouts]
        if len(tensors) == 1 and node.target in _KEEPING_CALLS:
            return self._layouts[tensors[0]]
        if node.target in _TERMS:
            return self._terms(node, tensors)
        if node.target in (torch.cat, torch.concat):
            return self._concatenation(node, tensors)
        if node.target in _REDUCTIONS:
            return self._reduction(node)
        if node.target in (torch.flatten, "flatten", "view", "reshape", torch.reshape):
            return self._flattened(node)
        return None

    def _module(self, name: str, node: fx.Node) -> Layout | None:
        module = self._modules[name]
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or source not in self._layouts:
            return None
        if is_parametrized(module):
            return None
        taken = self._layouts[source]
        if isinstance(module, _ConvNd):
            return self._convolution(name, module, taken)
        if isinstance(module, nn.Linear):
            if len(self._shapes[source]) != 2:
                return None
            return self._layer(name, taken, module.out_features)
        if isinstance(module, _NormBase):
            return self._side(name, "both", taken)
        if isinstance(module, nn.GroupNorm):
            return self._grouped(name, module.num_groups, taken)
        if isinstance(module, nn.PReLU):
            return taken if module.num_parameters == 1 else self._side(name, "both", taken)
        if isinstance(module, nn.Flatten):
            return self._stretched(node, source) if module.start_dim == 1 else None
        return taken if isinstance(module, _KEEPING) else None

    def _convolution(self, name: str, module: _ConvNd, taken: Layout) -> Layout | None:
        if module.groups == 1:
            return self._layer(name, taken, module.out_channels)
        whole = all(segment.repeat == 1 for segment in taken)
        if module.groups == module.in_channels == module.out_channels and whole:
            return self._side(name, "both", taken)
        return None

    def _layer(self, name: str, taken: Layout, channels: int) -> Layout:
        self._side(name, "in", taken)
        if (name, "out") in self._sides:  # called before: the same weights, the same channels
            return self._sides[name, "out"]
        return self._side(name, "out", self._new(name, channels))

    def _grouped(self, name: str, number: int, taken: Layout) -> Layout | None:
        if len(taken) > 1 or taken[0].repeat > 1:
            return None
        root = self._root(taken[0].group)
        group = self._groups[root]
        multiple = lcm(group.multiple, number)
        self._groups[root] = ChannelGroup(group.name, group.channels, multiple, group.fixed)
        return self._side(name, "both", taken)

    def _terms(self, node: fx.Node, tensors: list[fx.Node]) -> Layout | None:
        """Sums and products: what is broadcast over channels has none of its own."""
        dims = len(self._shapes[node])
        if any(len(self._shapes[t]) != dims for t in tensors) or dims < 2:
            return None
        channels = self._channels_of(node)
        whole = [t for t in tensors if self._channels_of(t) == channels]
        if not whole:
            return None
        for other in whole[1:]:
            self._tie(self._layouts[whole[0]], self._layouts[other])
        return self._layouts[whole[0]]

    def _concatenation(self, node: fx.Node, tensors: list[fx.Node]) -> Layout | None:
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        listed = node.args[0] if node.args else node.kwargs.get("tensors")
        if dim not in (1, 1 - len(self._shapes[node])) or not isinstance(listed, list | tuple):
            return None
        parts = [self._layouts[n] for n in listed if isinstance(n, fx.Node) and n in self._layouts]
        return sum(parts, ()) if len(parts) == len(listed) else None

    def _reduction(self, node: fx.Node) -> Layout | None:
        source = node.args[0]
        dims = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        if not isinstance(source, fx.Node) or len(self._shapes[source]) != 4:
            return None
        listed = dims if isinstance(dims, list | tuple) else [dims]
        # The channels stay where they are if only what comes after them goes.
        return self._layouts[source] if set(listed) <= {2, 3, -1, -2} else None

    def _flattened(self, node: fx.Node) -> Layout | None:
        source, *sizes = node.args
        if not isinstance(source, fx.Node):
            return None
        if node.target in (torch.flatten, "flatten"):
            start = node.kwargs.get("start_dim", sizes[0] if sizes else 0)
            return self._stretched(node, source) if start == 1 else None
        listed = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes
        # A size that is written down as a number would be wrong with other channels.
        batch, *rest = listed if isinstance(listed, list | tuple) else ()
        return self._stretched(node, source) if rest == [-1] and batch != -1 else None

    def _stretched(self, node: fx.Node, source: fx.Node) -> Layout | None:
        """All but the batch in one: (N, C, ...) -> (N, C * ...)."""
        if len(self._shapes[node]) != 2:
            return None
        pixels = prod(self._shapes[source][2:])
        return tuple(Segment(s.group, s.repeat * pixels) for s in self._layouts[source])

    # Groups

    def _new(self, name: str, channels: int, fixed: str = "") -> Layout:
        self._parent.append(len(self._groups))
        self._groups.append(ChannelGroup(name, channels, 1, fixed))
        return (Segment(len(self._groups) - 1),)

    def _root(self, group: int) -> int:
        while self._parent[group] != group:
            group = self._parent[group]
        return group

    def _tie(self, first: Layout, second: Layout) -> None:
        """Make two layouts one, or keep the number of all their channels."""
        pairs = list(zip(first, second, strict=False))
        alike = len(first) == len(second) and all(
            a.repeat == b.repeat
            and self._groups[self._root(a.group)].channels
            == self._groups[self._root(b.group)].channels
            for a, b in pairs
        )
        if not alike:
            self._fix_layouts([first, second], "terms of a sum that are concatenated differently")
            return
        for a, b in pairs:
            keep, gone = sorted((self._root(a.group), self._root(b.group)))
            one, other = self._groups[keep], self._groups[gone]
            self._parent[gone] = keep
            self._groups[keep] = ChannelGroup(
                one.name,
                one.channels,
                lcm(one.multiple, other.multiple),
                one.fixed or other.fixed,
            )

    def _side(self, name: str, side: str, layout: Layout) -> Layout:
        if (name, side) in self._sides:
            self._tie(self._sides[name, side], layout)
        return self._sides.setdefault((name, side), layout)

    def _fix(self, nodes: list[fx.Node], reason: str) -> None:
        self._fix_layouts([self._layouts[n] for n in nodes if n in self._layouts], reason)

    def _fix_layouts(self, layouts: list[Layout], reason: str) -> None:
        for segment in (s for layout in layouts for s in layout):
            root = self._root(segment.group)
            group = self._groups[root]
            if not group.fixed:
                self._groups[root] = ChannelGroup(
                    group.name, group.channels, group.multiple, reason
                )

    def _length(self, layout: Layout) -> int:
        return sum(self._groups[self._root(s.group)].channels * s.repeat for s in layout)

    def _channels_of(self, node: fx.Node) -> int:
        shape = self._shapes[node]
        return shape[1] if len(shape) > 1 else prod(shape)


def _name(target: Callable[..., Any] | str) -> str:
    return getattr(target, "__name__", str(target))
