"""Attention heads, which a network can only lose as a whole.

An attention consists of a module that stores its number of heads, the layers that compute queries,
keys and values, and the layer that reads the output of the heads. The layout of the heads in these
layers, and the numbers of the module that decrease with the heads, are proposed here and tested:
without some heads, a network has to compute what the whole network computes if nothing of these
heads is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from hwnas.search_spaces.any_model.axes import Axis, held
from hwnas.search_spaces.any_model.groups import Attribute, ChannelGroup, Member, Positions
from hwnas.search_spaces.any_model.trial import alike, narrowed, permutable, scrambled

__all__ = ["AttentionHeads", "attentions", "head_groups", "with_width"]

_NOT_COUNTS = ("dim", "size", "width", "channels")
_PROJECTIONS = 3  # queries, keys and values


@dataclass(frozen=True)
class AttentionHeads:
    """Module with attention heads, and the layers around them.

    Attributes:
        name: Name of the module that stores the number of heads.
        heads: Number of heads.
        head_dim: Channels of each head.
        makers: Names of the layers that compute queries, keys and values, in one or several.
        reader: Name of the layer that reads the output of the heads.
    """

    name: str
    heads: int
    head_dim: int
    makers: tuple[str, ...]
    reader: str

    @property
    def channels(self) -> int:
        """Number of channels of all heads."""
        return self.heads * self.head_dim

    @property
    def axes(self) -> frozenset[Axis]:
        """Axes that the channels of the heads are on."""
        return frozenset([*(Axis(maker, "out") for maker in self.makers), Axis(self.reader, "in")])


def attentions(network: nn.Module, example: Tensor) -> tuple[AttentionHeads, ...]:
    """Return the attentions of a network; of nested modules with heads, the innermost."""
    owners = {name: n for name, module in network.named_modules() if (n := _heads(module))}
    calls = _calls(network, example, owners)
    found: dict[str, AttentionHeads] = {}
    for name in sorted(owners, key=lambda name: -name.count(".")):
        attention = _attention(network, name, owners[name], calls)
        if attention is not None:
            found.setdefault(attention.reader, attention)
    return tuple(sorted(found.values(), key=lambda a: list(owners).index(a.name)))


def head_groups(
    network: nn.Module, example: Tensor, found: Sequence[AttentionHeads]
) -> dict[AttentionHeads, ChannelGroup]:
    """Return the channels of each attention that can lose heads on its own, as a group."""
    random = scrambled(network, example)
    whole: dict[AttentionHeads, ChannelGroup] = {}
    for attention in found:
        for layout in ("projections", "heads"):
            group = _group(network, attention, layout)
            if permutable(network, [group], example)[0]:
                tried = _tried(random, attention, group, example)
                if tried is not None:
                    whole[attention] = tried
                break
    return whole


def with_width(
    network: nn.Module, example: Tensor, width: ChannelGroup, narrow: Sequence[AttentionHeads]
) -> ChannelGroup | None:
    """Return a group whose width also decides the number of heads of attentions.

    These attentions cannot lose heads alone, because they use the width of their input as the width
    of all heads.

    Returns:
        The group with the heads in it; None if the widths differ, or the network fails with it.
    """
    inner = [a for a in narrow if a.channels == width.channels]
    if len(inner) != len(narrow) or len({a.head_dim for a in inner}) != 1:
        return None
    groups = [_group(network, attention, "projections") for attention in inner]
    attributes = [
        numbers for a in inner for numbers in next(_attributes(network.get_submodule(a.name), a))
    ]
    joined = replace(
        width,
        unit=math.lcm(width.unit, inner[0].head_dim),
        members=(*width.members, *(member for group in groups for member in group.members)),
        attributes=tuple(attributes),
    )
    if joined.channels % joined.unit or not permutable(network, [joined], example)[0]:
        return None
    half = max(1, joined.channels // joined.unit // 2) * joined.unit
    return joined if isinstance(narrowed(network, {joined: half}, (), example), Tensor) else None


def _heads(module: nn.Module) -> int:
    """Return the number of heads that a module states; 0 for most modules and for a single head."""
    counts = {value for key, value in _numbers(module).items() if _is_count(key)}
    return counts.pop() if len(counts) == 1 and max(counts) > 1 else 0


def _numbers(module: nn.Module) -> Mapping[str, int]:
    return {key: value for key, value in vars(module).items() if type(value) is int}


def _is_count(key: str) -> bool:
    name = key.lower()
    return "head" in name and not any(word in name for word in _NOT_COUNTS)


def _calls(network: nn.Module, example: Tensor, owners: Mapping[str, int]) -> list[str]:
    """Return the names of layers in the order of execution, and of owners at start and end."""
    calls: list[str] = []
    handles = []
    for name, module in network.named_modules():
        if name in owners:
            handles.append(module.register_forward_pre_hook(lambda *_, n=name: calls.append(n)))
            handles.append(module.register_forward_hook(lambda *_, n=name: calls.append(n)))
        elif _is_projection(module):
            handles.append(module.register_forward_hook(lambda *_, n=name: calls.append(n)))
    try:
        with torch.no_grad():
            network(example)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _is_projection(module: nn.Module) -> bool:
    if isinstance(module, _ConvNd):
        return module.groups == 1 and math.prod(module.kernel_size) == 1
    return isinstance(module, nn.Linear)


def _attention(
    network: nn.Module, name: str, heads: int, calls: Sequence[str]
) -> AttentionHeads | None:
    """Return the attention of an owner that ran once; None if there is none.

    The attention consists of the layers between the owner's start and end, and perhaps the next
    layer.
    """
    if calls.count(name) != 2:
        return None
    start = calls.index(name)
    end = calls.index(name, start + 1)
    inside = [n for n in calls[start + 1 : end] if _is_projection(network.get_submodule(n))]
    behind = calls[end + 1 : end + 2]
    for makers, reader in ((inside[:-1], inside[-1:]), (inside, behind)):
        if not reader or not _is_projection(network.get_submodule(reader[0])):
            continue
        channels = _widths_of(network, reader[0])[0]
        made = {n: _widths_of(network, n)[1] / channels for n in makers}
        used = tuple(n for n, times in made.items() if times in (1, 2, 3))
        if not channels % heads and sum(made[n] for n in used) == _PROJECTIONS:
            return AttentionHeads(name, heads, channels // heads, used, reader[0])
    return None


def _widths_of(network: nn.Module, name: str) -> tuple[int, int]:
    layer = network.get_submodule(name)
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    assert isinstance(layer, _ConvNd)
    return layer.in_channels, layer.out_channels


def _group(network: nn.Module, attention: AttentionHeads, layout: str) -> ChannelGroup:
    """Return the channels of all heads, if each maker has them in this layout.

    Args:
        network: Network that contains the attention.
        attention: Attention with these heads.
        layout: ``"projections"``: all heads of queries, then of keys, then of values;
            ``"heads"``: queries, keys and values of one head, then those of the next.
    """
    members = []
    for maker in attention.makers:
        times = _widths_of(network, maker)[1] // attention.channels
        places: Positions = np.arange(times * attention.channels, dtype=np.int64)
        if layout == "projections":
            places = places.reshape(times, attention.channels)
        else:
            split = places.reshape(attention.heads, times, attention.head_dim)
            places = split.swapaxes(0, 1).reshape(times, attention.channels)
        members.append(Member(Axis(maker, "out"), places))
    read: Positions = np.arange(attention.channels, dtype=np.int64)[None]
    members.append(Member(Axis(attention.reader, "in"), read))
    return ChannelGroup(
        attention.name, attention.channels, attention.head_dim, tuple(members), heads=True
    )


def _tried(
    random: nn.Module, attention: AttentionHeads, group: ChannelGroup, example: Tensor
) -> ChannelGroup | None:
    """Return the group with the attributes that make the network correct without half of the heads.

    Returns:
        The group; None if no proposed attributes do.
    """
    width = attention.head_dim * max(1, attention.heads // 2)
    silent = _silenced(random, group, width, example)
    for attributes in _attributes(random.get_submodule(attention.name), attention):
        proposed = replace(group, attributes=attributes)
        found = narrowed(random, {proposed: width}, (), example)
        if isinstance(found, Tensor) and alike(found, silent):
            return proposed
    return None


def _attributes(owner: nn.Module, attention: AttentionHeads) -> Iterator[tuple[Attribute, ...]]:
    """Yield the numbers of an owner that may decrease with its heads, likelier sets first."""
    numbers = _numbers(owner)
    counts = [
        Attribute(attention.name, key, attention.head_dim)
        for key, value in numbers.items()
        if _is_count(key) and value == attention.heads
    ]
    widths = [
        Attribute(attention.name, key, 1)
        for key, value in numbers.items()
        if value == attention.channels and not _is_count(key)
    ]
    yield (*counts, *widths)
    if widths:
        yield tuple(counts)
    if len(widths) > 1:
        yield from ((*counts, each) for each in widths)


def _silenced(network: nn.Module, group: ChannelGroup, width: int, example: Tensor) -> Tensor:
    """Return the whole network's output if no channel after the first ``width`` is read."""
    reader = group.members[-1]
    (name, dim), *_ = held(network, reader.axis)
    weight = network.get_parameter(name)
    before = weight.detach().clone()
    places = torch.from_numpy(reader.positions[:, width:].reshape(-1))
    with torch.no_grad():
        weight.index_fill_(dim, places, 0)
        output: Tensor = network(example)
        weight.copy_(before)
    return output
