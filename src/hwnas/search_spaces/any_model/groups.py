"""Groups of channels that can only be cut together, from the dependency graph of a network.

Torch-Pruning (Fang et al., "DepGraph: Towards Any Structural Pruning", CVPR 2023) follows a channel
from layer to layer. Here its results are split into single positions, and coupled positions are
grouped anew. Channels that are concatenated thereby remain separate groups.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from hwnas.errors import ConfigError
from hwnas.search_spaces.any_model.axes import Axis, axes_of, unit

__all__ = ["Attribute", "ChannelGroup", "Member", "Positions", "channel_groups"]

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Member:
    """Positions of a group's channels along one axis.

    Attributes:
        axis: Axis of a layer or parameter.
        positions: Positions of each channel, of shape (copies, channels). A linear layer behind a
            flattened feature map has one copy for each pixel.
    """

    axis: Axis
    positions: Positions


@dataclass(frozen=True)
class Attribute:
    """Number that a module stores and that decreases with the channels of a group.

    Attributes:
        module: Name of the module.
        key: Name of the number.
        divisor: Channels for each unit of the number.
    """

    module: str
    key: str
    divisor: int


@dataclass(frozen=True, eq=False)
class ChannelGroup:
    """Channels that go through the same layers in the same way.

    Attributes:
        name: Name of the first layer that produces the channels.
        channels: Number of channels.
        unit: Number of neighbouring channels that have to stay together.
        members: All axes that the channels are on, with their positions.
        attributes: Numbers of modules that depend on the number of channels.
        heads: Whether the channels are those of attention heads, each of ``unit`` channels.
    """

    name: str
    channels: int
    unit: int
    members: tuple[Member, ...]
    attributes: tuple[Attribute, ...] = ()
    heads: bool = False

    @property
    def choice(self) -> str:
        """Name of the choice: of a width, or of a number of heads."""
        return f"{self.name}.{'heads' if self.heads else 'width'}"

    def width(self, option: int) -> int:
        """Return the number of channels at an option of the choice."""
        return option * self.unit if self.heads else option

    def option(self, width: int) -> int:
        """Return the option for a number of channels; the inverse of `width`."""
        return width // self.unit if self.heads else width


class _Couplings:
    """Coupled positions of all axes; a position is an index over the channels of all axes."""

    def __init__(self, network: nn.Module, left_out: Collection[Axis]) -> None:
        self.network = network
        self.left_out: set[int] = set()
        self.start: dict[Axis, int] = {}
        self.lengths: dict[Axis, int] = {}
        self.size = 0
        self.pairs: list[tuple[int, int]] = []
        self.touched: set[int] = set()
        self.barred: list[tuple[int, str]] = []
        self.names = {module: name for name, module in network.named_modules()}
        self._parameters = {id(p): name for name, p in network.named_parameters()}
        for module, name in self.names.items():
            for axis, length in axes_of(name, module).values():
                self._add(axis, length)
        for axis in left_out:
            start = self.start[axis]
            self.left_out.update(range(start, start + self.lengths[axis]))

    def _add(self, axis: Axis, length: int) -> None:
        if axis not in self.start:
            self.start[axis], self.lengths[axis] = self.size, length
            self.size += length

    def position(self, layer: nn.Module, side: str) -> int | None:
        """Return the first position of the axis of a layer; None if the layer has no axis."""
        sides = axes_of(self.names[layer], layer)
        return self.start[sides[side][0]] if sides else None

    def followed(self, layer: nn.Module) -> bool:
        """Return whether the output channels of a layer need not be followed.

        They need not if they are already followed or left out, or if the layer has no axis.
        """
        start = self.position(layer, "out")
        if start is None or start in self.left_out:
            return True
        channels = axes_of("", layer)["out"][1]
        return self.touched.issuperset(range(start, start + channels))

    def couple(self, one: int, other: int) -> None:
        """Record that two positions can only be cut together."""
        if one in self.left_out or other in self.left_out:
            return
        self.pairs.append((one, other))
        self.touched |= {one, other}

    def of_parameter(self, parameter: nn.Parameter, dim: int) -> int:
        """Return the first position of the axis of a parameter that belongs to no known layer."""
        axis = Axis(self._parameters[id(parameter)], "own", dim)
        self._add(axis, parameter.shape[dim])
        return self.start[axis]


def channel_groups(
    network: nn.Module, example: Tensor, left_out: Collection[Axis] = ()
) -> tuple[tuple[ChannelGroup, ...], dict[str, str]]:
    """Return the groups of channels of a network that may be cut.

    Args:
        network: Network in evaluation mode. Its parameters require gradients, since the graph is
            that of autograd. The network is left unchanged.
        example: Input (N, C, H, W).
        left_out: Axes whose channels are followed elsewhere.

    Returns:
        The groups in the order of the network, and the reason for each layer whose channels are in
        no group, by layer name.

    Raises:
        ConfigError: Torch-Pruning cannot follow the network.
    """
    couplings = _Couplings(network, left_out)
    graph = _dependency_graph(network, example)
    for root in list(graph.module2node):
        if isinstance(root, _ConvNd | nn.Linear) and not couplings.followed(root):
            _follow(couplings, graph, root)
    groups, barred = _assembled(couplings)
    made = {group_member.axis.name for g in groups for group_member in g.members}
    made |= {axis.name for axis in left_out}
    for name, module in network.named_modules():
        if isinstance(module, _ConvNd | nn.Linear) and name not in made | set(barred):
            barred[name] = _why_not(module, module in graph.module2node)
    return groups, barred


def _why_not(layer: nn.Module, seen: bool) -> str:
    if not seen:
        return (
            "its output does not reach the output of the network, or the path is hidden from "
            "autograd"
        )
    if isinstance(layer, _ConvNd) and layer.groups > 1:
        return f"{layer.groups} groups of unequal numbers of inputs and outputs"
    return "its channels cannot be followed through the network"


def _dependency_graph(network: nn.Module, example: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about element-wise operators; groups are tested later
        from torch_pruning.dependency import DependencyGraph

        try:
            return DependencyGraph().build_dependency(network, example, verbose=False)
        except Exception as error:  # any failure is due to the user's model
            raise ConfigError(
                f"torch-pruning cannot follow {type(network).__name__} "
                f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}); "
                "write its forward with modules and plain tensor operations"
            ) from error


def _follow(couplings: _Couplings, graph: Any, root: nn.Module) -> None:
    """Record all positions that the output channels of one layer are coupled with."""
    start = couplings.position(root, "out")
    assert start is not None
    channels = axes_of("", root)["out"][1]
    handler = graph.get_pruner_of_module(root).prune_out_channels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = graph.get_pruning_group(root, handler, list(range(channels)))
    for item in found:
        target, reason = item.dep.target.module, ""
        place: int | None = None
        if isinstance(target, nn.Parameter):
            place = couplings.of_parameter(target, item.dep.target.pruning_dim)
        elif isinstance(target, nn.Module) and target in couplings.names:
            side = "out" if graph.is_out_channel_pruning_fn(item.dep.handler) else "in"
            place = couplings.position(target, side)
            if place is None:
                reason = f"they go through {couplings.names[target]!r}, " + _kind(target)
        elif type(target).__name__ == "_OutputOp":
            reason = "they are outputs of the network"
        pairs = zip(item.root_idxs, item.idxs, strict=True)
        for own, other in ((a, b) for a, b in pairs if a is not None):
            if place is not None:
                couplings.couple(start + own, place + other)
            elif reason:
                couplings.barred.append((start + own, reason))


def _kind(module: nn.Module) -> str:
    groups = getattr(module, "groups", 1)
    return f"a {type(module).__name__}" + (f" of {groups} groups" if groups != 1 else "")


def _assembled(couplings: _Couplings) -> tuple[tuple[ChannelGroup, ...], dict[str, str]]:
    """Return coupled positions as groups, and the reasons for layers that are in none."""
    labels = _labels(couplings)
    reasons = {int(labels[position]): reason for position, reason in couplings.barred}
    places: dict[int, dict[Axis, list[int]]] = defaultdict(lambda: defaultdict(list))
    barred: dict[str, str] = {}
    for axis, start in couplings.start.items():
        for position in range(couplings.lengths[axis]):
            label = int(labels[start + position])
            if label in reasons:
                barred.setdefault(axis.name, reasons[label])
            elif start + position in couplings.touched:
                places[label][axis].append(position)
    alike: dict[tuple[tuple[Axis, int], ...], list[dict[Axis, list[int]]]] = defaultdict(list)
    for found in places.values():
        alike[tuple((axis, len(found[axis])) for axis in found)].append(found)
    groups: list[ChannelGroup] = []
    for signature, channels in alike.items():
        maker = _maker(couplings.network, [axis for axis, _ in signature])
        if maker is not None:
            taken = {group.name for group in groups}
            groups.append(_group(couplings.network, _unused(maker, taken), channels))
    makers = [g for g in groups if _whole_units(couplings.network, g)]
    barred |= {
        member.axis.name: "groups of a normalisation or convolution are not aligned with channels"
        for group in groups
        if group not in makers
        for member in group.members
    }
    return tuple(makers), _of_makers(couplings.network, barred)


def _of_makers(network: nn.Module, barred: Mapping[str, str]) -> dict[str, str]:
    layers = dict(network.named_modules())
    return {n: why for n, why in barred.items() if isinstance(layers.get(n), _ConvNd | nn.Linear)}


def _labels(couplings: _Couplings) -> npt.NDArray[np.int32]:
    """Return one label for each position; coupled positions have equal labels."""
    pairs = np.array(couplings.pairs, dtype=np.int64).reshape(-1, 2)
    edges = scipy.sparse.coo_array(
        (np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])),
        shape=(couplings.size, couplings.size),
    )
    labels: npt.NDArray[np.int32] = scipy.sparse.csgraph.connected_components(
        edges, directed=False
    )[1]
    return labels


def _maker(network: nn.Module, axes: list[Axis]) -> str | None:
    """Return the first layer that outputs these channels; None for those of the input image."""
    for axis in axes:
        if axis.side == "out":
            layer = network.get_submodule(axis.name)
            makes = isinstance(layer, nn.Linear) or (
                isinstance(layer, _ConvNd) and layer.groups == 1
            )
            if makes:
                return axis.name
    return None


def _unused(name: str, taken: set[str]) -> str:
    """Return the name, with a number appended if the layer makes channels of several groups."""
    if name not in taken:
        return name
    number = next(n for n in range(2, len(taken) + 3) if f"{name}#{n}" not in taken)
    return f"{name}#{number}"


def _group(network: nn.Module, name: str, channels: list[dict[Axis, list[int]]]) -> ChannelGroup:
    members = tuple(
        Member(axis, np.array([found[axis] for found in channels], dtype=np.int64).T)
        for axis in channels[0]
    )
    return ChannelGroup(name, len(channels), math.lcm(*_units(network, members)), members)


def _units(network: nn.Module, members: tuple[Member, ...]) -> Iterator[int]:
    for member in members:
        if member.axis.side != "own":
            yield unit(network.get_submodule(member.axis.name)) if member.axis.side == "out" else 1


def _whole_units(network: nn.Module, group: ChannelGroup) -> bool:
    """Return whether each block of ``group.unit`` channels fills whole groups of each layer."""
    if group.unit == 1:
        return True
    if group.channels % group.unit:
        return False
    for member in group.members:
        layer = network.get_submodule(member.axis.name) if member.axis.side == "out" else None
        together = 1 if layer is None else unit(layer)
        blocks = member.positions.reshape(len(member.positions), -1, together)
        starts = blocks[..., :1]
        if (blocks != starts + np.arange(together)).any() or (starts % together).any():
            return False
    return True
