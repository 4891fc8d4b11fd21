"""Widening: channels are replicated, and the layers that read them divide their weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hwnas.search_spaces.any_model.axes import held
from hwnas.search_spaces.any_model.cutting import plan, shapes_of
from hwnas.search_spaces.any_model.groups import ChannelGroup

__all__ = ["Replicas", "widened"]

_LEAST_SHARE = 0.5  # least share of a replica, before shares are normalised to sum to 1


@dataclass(frozen=True)
class Replicas:
    """Replication of channels to a larger number.

    Attributes:
        origin: Index of the old channel that each new channel repeats, (new,); the first ones are
            the old channels themselves.
        share: Share of each new channel in the weights that read the old one, (new,), float64.
    """

    origin: Tensor
    share: Tensor

    @classmethod
    def of(cls, old: int, new: int, unit: int, generator: torch.Generator) -> Replicas:
        """Return the old channels, followed by random ones of them.

        Every channel is repeated k times before one is repeated k + 1 times. So means and variances
        over channels stay the same if ``new`` is a multiple of ``old``.

        Args:
            old: Number of channels, a multiple of ``unit``.
            new: Larger number of channels, a multiple of ``unit``.
            unit: Number of neighbouring channels that stay together.
            generator: Source of randomness.
        """
        blocks, wanted = old // unit, new // unit
        extra = [torch.randperm(blocks, generator=generator) for _ in range(wanted // blocks)]
        block = torch.cat([torch.arange(blocks), *extra])[:wanted]
        origin = (block[:, None] * unit + torch.arange(unit)).flatten()
        drawn = _LEAST_SHARE + torch.rand(new, generator=generator, dtype=torch.float64)
        total = torch.zeros(old, dtype=torch.float64).index_add_(0, origin, drawn)
        return cls(origin, drawn / total[origin])


def widened(
    narrow: Mapping[str, Tensor],
    network: nn.Module,
    widths: Mapping[ChannelGroup, int],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Return the state of a network from that of the same network with narrower groups.

    Net2WiderNet (Chen et al., ICLR 2016, section 2.2). The shares of replicas are uneven and
    random, so that replicas become different in training; Net2Net adds noise for this.

    Args:
        narrow: State dict of ``cut(network, plan(network, widths))``.
        network: Network whose sizes the new state has; only names and shapes are read.
        widths: Number of channels of each group in the narrow network.
        generator: Source of randomness.
    """
    shapes = shapes_of(network)
    kept = plan(network, widths, shapes=shapes).tensors
    source: dict[str, dict[int, Tensor]] = defaultdict(dict)
    share: dict[str, dict[int, Tensor]] = defaultdict(dict)
    for group, width in widths.items():
        if width == group.channels:
            continue
        replicas = Replicas.of(width, group.channels, group.unit, generator)
        for member in group.members:
            places = torch.from_numpy(member.positions)
            for name, dim in held(network, member.axis):
                if name not in shapes:
                    continue
                whole = source[name].setdefault(dim, torch.arange(shapes[name][dim]))
                whole[places] = places[:, replicas.origin]
                if member.axis.side == "in":
                    ones = torch.ones(shapes[name][dim], dtype=torch.float64)
                    share[name].setdefault(dim, ones)[places] = replicas.share
    state = dict(narrow)
    for name, dims in source.items():
        for dim, whole in dims.items():
            index = torch.searchsorted(torch.from_numpy(kept[name][dim]), whole)
            state[name] = state[name].index_select(dim, index)
            if dim in share[name]:
                state[name] = _scaled(state[name], share[name][dim], dim)
    return state


def _scaled(tensor: Tensor, factors: Tensor, dim: int) -> Tensor:
    shape = [1] * tensor.dim()
    shape[dim] = -1
    return (tensor * factors.reshape(shape)).to(tensor.dtype)
