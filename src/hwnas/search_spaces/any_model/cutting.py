"""Cutting of a network to the first channels of its groups, and reordering of channels."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.search_spaces.any_model.axes import Axis, held, resize, runs
from hwnas.search_spaces.any_model.groups import ChannelGroup, Positions
from hwnas.search_spaces.space.building import Segments

__all__ = [
    "Cut",
    "PassThrough",
    "cut",
    "module_of",
    "plan",
    "reorder",
    "segments_of",
    "shapes_of",
]


class PassThrough(nn.Identity):
    """Module in place of a skipped block; it returns its first argument."""

    def forward(self, input: Tensor, *others: Any, **options: Any) -> Tensor:
        """Return the input."""
        return input


@dataclass(frozen=True)
class Cut:
    """Description of what remains of a network.

    Attributes:
        tensors: Remaining positions in each cut dimension, by tensor name.
        sides: Channels of each cut side, by layer name.
        attributes: New value of each number that a module stores, by names of module and number.
        skipped: Names of modules that are skipped, so that their input passes through.
    """

    tensors: Mapping[str, Mapping[int, Positions]]
    sides: Mapping[str, Mapping[str, int]]
    attributes: Mapping[tuple[str, str], int]
    skipped: tuple[str, ...]


def plan(
    network: nn.Module,
    widths: Mapping[ChannelGroup, int],
    skipped: Iterable[str] = (),
    shapes: Mapping[str, torch.Size] | None = None,
) -> Cut:
    """Return what remains of a network with narrower groups.

    Args:
        network: Whole network; only names and shapes are read.
        widths: Number of first channels that each group keeps; groups that are not given keep all.
        skipped: Names of modules to skip.
        shapes: Result of `shapes_of`, if already known.
    """
    removed: dict[Axis, list[Positions]] = defaultdict(list)
    attributes: dict[tuple[str, str], int] = {}
    left_out = tuple(skipped)
    for group, width in widths.items():
        if width < group.channels:
            for number in group.attributes:
                if not _within(number.module, left_out):
                    attributes[number.module, number.key] = width // number.divisor
            for member in group.members:
                removed[member.axis].append(member.positions[:, width:].reshape(-1))
    tensors: dict[str, dict[int, Positions]] = defaultdict(dict)
    sides: dict[str, dict[str, int]] = defaultdict(dict)
    shapes = shapes or shapes_of(network)
    for axis, positions in removed.items():
        if _within(axis.name, left_out):
            continue
        for name, dim in held(network, axis):
            if name in shapes:
                stays = np.ones(shapes[name][dim], dtype=bool)
                stays[np.concatenate(positions)] = False
                tensors[name][dim] = np.flatnonzero(stays)
                sides[axis.name][axis.side] = int(stays.sum())
    return Cut(tensors, sides, attributes, left_out)


def cut(network: nn.Module, what: Cut) -> nn.Module:
    """Return a smaller copy of a network, with its own tensors; on the meta device if those are.

    Args:
        network: Whole network; left unchanged.
        what: Result of `plan`.
    """
    smaller = copy.deepcopy(network)
    for name in what.skipped:
        holder, _, key = name.rpartition(".")
        setattr(smaller.get_submodule(holder), key, PassThrough())
    for name, dims in what.tensors.items():
        holder, _, key = name.rpartition(".")
        _replace(smaller.get_submodule(holder), key, dims)
    for name, sides in what.sides.items():
        layers = smaller.get_submodule(name) if _is_module(smaller, name) else None
        if layers is not None:
            resize(layers, dict(sides))
    for (name, key), number in what.attributes.items():
        setattr(smaller.get_submodule(name), key, number)
    return smaller


def reorder(network: nn.Module, orders: Mapping[ChannelGroup, Positions]) -> None:
    """Put the channels of groups into another order, in place; the network's function is unchanged.

    Args:
        network: Whole network.
        orders: Channels of each group in their new order.
    """
    tensors = _tensors(network)
    with torch.no_grad():
        for group, order in orders.items():
            for member in group.members:
                for name, dim in held(network, member.axis):
                    if name in tensors:
                        tensor = tensors[name]
                        index = np.arange(tensor.shape[dim])
                        index[member.positions] = member.positions[:, order]
                        chosen = torch.from_numpy(index).to(tensor.device)
                        tensor.copy_(tensor.index_select(dim, chosen))


def shapes_of(network: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of all parameters and buffers, by name."""
    return {name: tensor.shape for name, tensor in _tensors(network).items()}


def module_of(axis: Axis) -> str:
    """Return the name of the module whose tensors have an axis."""
    return axis.name.rpartition(".")[0] if axis.side == "own" else axis.name


def segments_of(dims: Mapping[int, Positions]) -> Segments:
    """Return the remaining pieces of a tensor, by dimension, where they are not its corner."""
    return tuple(
        (dim, runs(positions.tolist()))
        for dim, positions in dims.items()
        if dim >= 2 or not np.array_equal(positions, np.arange(len(positions)))
    )


def _within(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _is_module(network: nn.Module, name: str) -> bool:
    holder, _, key = name.rpartition(".")
    return not name or key in network.get_submodule(holder)._modules


def _replace(holder: nn.Module, key: str, dims: Mapping[int, Positions]) -> None:
    """Replace one parameter or buffer of a module by the positions that remain."""
    whole = getattr(holder, key)
    part = whole.detach()
    if part.is_meta:
        shape = list(part.shape)
        for dim, positions in dims.items():
            shape[dim] = len(positions)
        part = part.new_empty(shape)
    else:
        for dim, positions in dims.items():
            part = part.index_select(dim, torch.from_numpy(positions).to(part.device))
    if isinstance(whole, nn.Parameter):
        setattr(holder, key, nn.Parameter(part, requires_grad=whole.requires_grad))
    else:
        holder._buffers[key] = part
