"""Modules of NAS-Bench-201's networks, built from chosen operations."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.layers.candidate_operators import only_operator
from hwnas.search_spaces.tabular.nasbench201 import EDGES

__all__ = ["Cell", "Halving", "ZeroOperation", "head", "operation", "stem"]

_NODES = 4


class ZeroOperation(nn.Module):
    """Operation ``none`` of an edge: its output is zero."""

    def forward(self, x: Tensor) -> Tensor:
        """Return zeros in the shape of x."""
        return torch.zeros_like(x)


class Cell(nn.Module):
    """Cell of four nodes, each the sum of the outputs of its edges: (N, C, H, W) -> (N, C, H, W).

    An edge with ``none`` is left out of the sum, so it costs nothing on any device. A node whose
    incoming edges are all ``none`` is zero.

    Args:
        edges: Operation of each edge, in the order of `EDGES`.
    """

    def __init__(self, edges: Sequence[nn.Module]) -> None:
        super().__init__()
        self.edges = nn.ModuleList(edges)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last node, for an input of shape (N, C, H, W)."""
        nodes = [x]
        for node in range(1, _NODES):
            brought = [
                edge(nodes[start])
                for edge, (start, end) in zip(self.edges, EDGES, strict=True)
                if end == node and not isinstance(only_operator(edge), ZeroOperation)
            ]
            nodes.append(_total(brought) if brought else torch.zeros_like(x))
        return nodes[-1]


class Halving(nn.Module):
    """Residual block of stride 2: (N, C, H, W) -> (N, C', H / 2, W / 2)."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _relu_conv_norm(in_channels, out_channels, 3, 2),
            _relu_conv_norm(out_channels, out_channels, 3),
        )
        self.shortcut = nn.Sequential(
            nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False),
            nn.Conv2d(in_channels, out_channels, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, whose height and width are half those of x, rounded up."""
        halved: Tensor = self.body(x) + self.shortcut(x)
        return halved


def operation(channels: int, name: str, divisor: int = 1) -> nn.Module:
    """Return the operation of an edge by its name: (N, C, H, W) -> (N, C, H, W).

    Args:
        channels: Channels of the edge.
        name: Name of the operation.
        divisor: Number of parts of the channels, of which the operation works on one.

    Raises:
        ConfigError: The channels cannot be divided into equal parts.
    """
    if channels % divisor:
        raise ConfigError(
            f"{channels} channels cannot be divided into {divisor} equal parts; choose space."
            "channels as a multiple of the divisor"
        )
    channels //= divisor
    if name == "none":
        return ZeroOperation()
    if name == "skip_connect":
        return nn.Identity()
    if name == "avg_pool_3x3":
        return nn.AvgPool2d(3, 1, 1, count_include_pad=False)
    return _relu_conv_norm(channels, channels, 1 if name == "nor_conv_1x1" else 3)


def stem(in_channels: int, channels: int) -> nn.Module:
    """Return the stem: a convolution and its normalisation."""
    conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(channels)))


def head(channels: int, outputs: int) -> nn.Module:
    """Return the head, which maps the last feature map to the outputs."""
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(channels),
            activation=nn.ReLU(inplace=True),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            outputs=nn.Linear(channels, outputs),
        )
    )


def _relu_conv_norm(
    in_channels: int, out_channels: int, kernel_size: int, stride: int = 1
) -> nn.Module:
    conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False)
    # Not in place, because other edges read the same node.
    parts = OrderedDict(activation=nn.ReLU(), conv=conv, norm=nn.BatchNorm2d(out_channels))
    return nn.Sequential(parts)


def _total(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total
