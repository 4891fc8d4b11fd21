"""From images to tokens that know where they are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hwnas.search_spaces.layers.depthwise import DepthwiseConv2d

__all__ = ["PatchEmbedding", "PositionTable"]

_SPREAD = 0.02  # standard deviation of a new table, as in ViT


class PositionTable(nn.Module):
    """A learned vector for each place: (N, C, G, G) -> (1, C, G, G).

    Of a larger table, a smaller network has the middle.

    Args:
        width: C.
        grid: G.
    """

    def __init__(self, width: int, grid: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, width, grid, grid))
        nn.init.normal_(self.table, std=_SPREAD)

    def forward(self, x: Tensor) -> Tensor:
        """The table, whatever x is."""
        return self.table


class PatchEmbedding(nn.Module):
    """A token for each patch of an image: (N, channels, H, W) -> (N, H / p * W / p, C).

    Args:
        in_channels: Of the images.
        width: C.
        patch_size: p, in pixels; it divides H and W.
        kernel_size: What a token sees of the image; patches overlap where it is more than p. It
            exceeds p by an even number.
        grid: Tokens in a row, for a table of positions; if None a depthwise convolution tells
            positions by the zeros around the image (CPVT, Chu et al., ICLR 2023), for any number.
    """

    def __init__(
        self, in_channels: int, width: int, patch_size: int, kernel_size: int, grid: int | None
    ) -> None:
        super().__init__()
        border = (kernel_size - patch_size) // 2
        self.patches = nn.Conv2d(in_channels, width, kernel_size, patch_size, border)
        self.position = DepthwiseConv2d(width, 3) if grid is None else PositionTable(width, grid)

    def forward(self, images: Tensor) -> Tensor:
        """Tokens of images, row by row."""
        x: Tensor = self.patches(images)
        x = x + self.position(x)
        return x.flatten(2).transpose(1, 2).contiguous()
