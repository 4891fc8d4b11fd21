"""Importance of the channels of a group, from the weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hwnas.search_spaces.any_model.axes import held
from hwnas.search_spaces.any_model.groups import ChannelGroup

__all__ = ["importance_order"]


def importance_order(network: nn.Module, group: ChannelGroup) -> npt.NDArray[np.int64]:
    """Return the channels of a group by decreasing importance.

    Blocks of ``group.unit`` channels stay together. The importance of a channel is the sum of its
    squared weights over all layers that it goes through (DepGraph, Fang et al., CVPR 2023,
    section 3.4). Each layer's sum is first divided by its mean over the channels, so that large
    layers do not outweigh small ones.

    Returns:
        Indices of channels, of shape (group.channels,); ties keep their order.
    """
    parameters = dict(network.named_parameters())
    total = np.zeros(group.channels)
    for member in group.members:
        for name, dim in held(network, member.axis):
            if name in parameters and not name.endswith(".bias"):
                squares = _squares(parameters[name], dim)
                score = squares[member.positions].sum(axis=0)
                total += score / max(score.mean(), np.finfo(np.float64).tiny)
    blocks = total.reshape(-1, group.unit)
    first = np.argsort(-blocks.sum(axis=1), kind="stable") * group.unit
    order: npt.NDArray[np.int64] = (first[:, None] + np.arange(group.unit)).reshape(-1)
    return order


def _squares(weight: torch.Tensor, dim: int) -> npt.NDArray[np.float64]:
    """Return the sum of squares over all dimensions but one."""
    rows = weight.detach().double().movedim(dim, 0).flatten(1) if weight.dim() > 1 else None
    squares = weight.detach().double().square() if rows is None else rows.square().sum(1)
    result: npt.NDArray[np.float64] = squares.cpu().numpy()
    return result
