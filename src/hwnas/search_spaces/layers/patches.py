"""Embedding of images as tokens with positions."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from hwnas.search_spaces.layers.depthwise import DepthwiseConv2d
from hwnas.search_spaces.map_sizes import Size

__all__ = ["PatchEmbedding", "Position", "PositionTable"]

Position = Literal["convolution", "table"]
"""Encoding of positions: a depthwise convolution, or a learned table."""


_SPREAD = 0.02  # standard deviation of the initial table, as in ViT


class PositionTable(nn.Module):
    """Learned vector for each position: (N, C, rows, columns) -> (1, C, rows, columns).

    A smaller network uses the middle of a larger table.

    Args:
        width: C.
        grid: Number of rows and columns.
    """

    def __init__(self, width: int, grid: Size) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, width, *grid))
        nn.init.normal_(self.table, std=_SPREAD)

    def forward(self, x: Tensor) -> Tensor:
        """Return the table, for any x."""
        return self.table


class PatchEmbedding(nn.Module):
    """Embedding of each patch of an image as a token: (N, channels, H, W) -> (N, H / p * W / p, C).

    Args:
        in_channels: Channels of the images.
        width: C.
        patch_size: p, in pixels; it divides H and W.
        kernel_size: Side of the window that a token sees; patches overlap if it is more than p. It
            exceeds p by an even number.
        grid: Number of rows and columns of tokens, for a table of positions. If None, a depthwise
            convolution encodes positions by the zero padding (CPVT, Chu et al., ICLR 2023), for any
            number.
    """

    def __init__(
        self, in_channels: int, width: int, patch_size: int, kernel_size: int, grid: Size | None
    ) -> None:
        super().__init__()
        border = (kernel_size - patch_size) // 2
        self.patches = nn.Conv2d(in_channels, width, kernel_size, patch_size, border)
        self.position = DepthwiseConv2d(width, 3) if grid is None else PositionTable(width, grid)

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens of images, row by row."""
        x: Tensor = self.patches(images)
        x = x + self.position(x)
        return x.flatten(2).transpose(1, 2).contiguous()
