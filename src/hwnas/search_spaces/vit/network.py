"""Modules of a `VitSpace`: embedding, blocks, head."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from hwnas.search_spaces.layers import (
    Attention,
    FeedForward,
    PatchEmbedding,
    PreNorm,
    TokenMerging,
)
from hwnas.search_spaces.vit.config import VitConfig, hidden_width

__all__ = ["TokenHead", "VisionTransformer", "block", "embedding", "head"]


class TokenHead(nn.Module):
    """Mean of normalised tokens, then a linear layer: (N, T, C) -> (N, outputs).

    Args:
        width: C.
        outputs: Length of the output vector.
        dropout: Dropout probability before the linear layer.
    """

    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.outputs = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of tokens x, shape (N, T, C)."""
        outputs: Tensor = self.outputs(self.dropout(self.norm(x).mean(1)))
        return outputs


class VisionTransformer(nn.Sequential):
    """Network of a `VitSpace`: (N, C, H, W) -> (N, outputs)."""

    def __init__(self, embedding: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__(OrderedDict(embedding=embedding, blocks=nn.Sequential(*blocks), head=head))


def embedding(
    config: VitConfig, width: int, patch_size: int, resolution: int | None = None
) -> PatchEmbedding:
    """Return the embedding of images as tokens; only a position table uses the resolution."""
    grid = None
    if config.position == "table" and resolution:
        grid = config.grid(resolution, patch_size)
    return PatchEmbedding(config.in_channels, width, patch_size, config.patch_size[0], grid)


def block(
    config: VitConfig,
    width: int,
    heads: int,
    mlp_ratio: float,
    rank: float | None = None,
    merging: float = 0,
) -> nn.Sequential:
    """Return a block that mixes tokens, then transforms each alone; (N, T, C) -> (N, T', C)."""
    attention = Attention(width, heads, config.head_width, rank)
    feed_forward = FeedForward(width, hidden_width(width, mlp_ratio), rank)
    parts = OrderedDict[str, nn.Module](attention=PreNorm(width, attention))
    if merging:
        parts["merging"] = TokenMerging(merging)
    parts["feed_forward"] = PreNorm(width, feed_forward)
    return nn.Sequential(parts)


def head(config: VitConfig, width: int) -> TokenHead:
    """Return the head, which maps tokens to the outputs."""
    return TokenHead(width, config.outputs, config.dropout)
