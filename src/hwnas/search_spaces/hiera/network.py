"""Modules of a `HieraSpace`: embedding, blocks with attention in mask units, head.

Shapes: N images, T tokens, C channels. Tokens are in the order of their mask units, so that those
of a unit are neighbours in memory, and within a unit row by row. No tensor has more than four
dimensions.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from hwnas.search_spaces.hiera.config import HieraConfig
from hwnas.search_spaces.layers import DepthwiseConv2d, FeedForward, PositionTable, PreNorm
from hwnas.search_spaces.vit.network import TokenHead

__all__ = ["Hiera", "UnitAttention", "attention", "block", "embedding", "head", "perceptron"]


class UnitEmbedding(nn.Module):
    """Embedding of overlapping patches as tokens: (N, channels, H, W) -> (N, T, C).

    The kernel is one pixel smaller than two patches, as in Hiera's with 7 and 4 pixels.

    Args:
        config: Configuration of the space.
        width: C.
        resolution: Longer side of the input, for a table of positions.
    """

    def __init__(self, config: HieraConfig, width: int, resolution: int | None) -> None:
        super().__init__()
        patch, self._side = config.patch_size, config.mask_unit
        self.patches = nn.Conv2d(config.in_channels, width, 2 * patch - 1, patch, patch - 1)
        self.position = (
            DepthwiseConv2d(width, 3)
            if resolution is None
            else PositionTable(width, config.grid(resolution))
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens of images, unit by unit."""
        x: Tensor = self.patches(images)
        x = (x + self.position(x)).permute(0, 2, 3, 1)  # (N, rows, columns, C)
        rows, columns, channels = x.shape[1:]
        in_rows = (-1, self._side, columns // self._side, self._side * channels)
        by_unit = x.reshape(in_rows).transpose(1, 2)  # (rows of units, columns of units, side, ...)
        return by_unit.reshape(-1, rows * columns, channels)


class UnitAttention(nn.Module):
    """Residual attention within mask units, or among all tokens: (N, T, C) -> (N, T', C').

    Mask-unit attention and Q-pooling of Hiera (Ryali et al., ICML 2023, section 3.2): where a stage
    begins, only the largest query of every 2 x 2 neighbours remains, so T' = T / 4.

    Args:
        inputs: C.
        outputs: C'.
        heads: Number of heads.
        head_width: Channels of a head.
        side: Side of a mask unit in tokens, before pooling.
        local: Whether tokens attend to those of their own mask unit only.
        pooled: Whether queries are pooled; else C' = C.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        heads: int,
        head_width: int,
        side: int,
        local: bool,
        pooled: bool,
    ) -> None:
        super().__init__()
        inner = heads * head_width
        self.norm = nn.LayerNorm(inputs)
        self.query = nn.Linear(inputs, inner)
        self.key = nn.Linear(inputs, inner)
        self.value = nn.Linear(inputs, inner)
        self.output = nn.Linear(inner, outputs)
        self.shortcut = nn.Linear(inputs, outputs) if pooled else None
        self._split = (heads, head_width)
        self._side, self._local = side, local

    def extra_repr(self) -> str:
        """Return what the layers do not tell."""
        units = f"units of {self._side} x {self._side}" if self._local else "all tokens"
        return f"heads={self._split[0]}, {units}"

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens x, shape (N, T, C), after attention."""
        tokens, normed = x.shape[1], self.norm(x)
        query = self.query(normed)
        if self.shortcut is not None:
            query, x = self._pooled(query), self._pooled(self.shortcut(normed))
        mixed = self._mixed(query, self.key(normed), self.value(normed), tokens)
        outputs: Tensor = x + self.output(mixed)
        return outputs

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, tokens: int) -> Tensor:
        """Return softmax(Q K' / sqrt(d)) V within units, shape (N, T', heads * d)."""
        units = tokens // self._side**2 if self._local else 1
        shape = query.shape[1:]
        query, key, value = (
            each.reshape(-1, each.shape[1] // units, *self._split).transpose(1, 2)
            for each in (query, key, value)
        )  # (N units, heads, tokens of a unit, d)
        scores = (query * self._split[1] ** -0.5) @ key.transpose(2, 3)
        mixed: Tensor = scores.softmax(3) @ value
        return mixed.transpose(1, 2).reshape(-1, *shape)

    def _pooled(self, x: Tensor) -> Tensor:
        """Return the largest of every 2 x 2 neighbours, (N, T / 4, C), of tokens (N, T, C)."""
        tokens, channels = x.shape[1:]
        rows = x.reshape(-1, 2, self._side * channels).amax(1)
        pooled: Tensor = rows.reshape(-1, 2, channels).amax(1)
        return pooled.reshape(-1, tokens // 4, channels)


class Hiera(nn.Sequential):
    """Network of a `HieraSpace`: (N, C, H, W) -> (N, outputs)."""

    def __init__(self, embedding: nn.Module, stages: list[nn.Sequential], head: nn.Module) -> None:
        parts = OrderedDict(embedding=embedding, stages=nn.Sequential(*stages), head=head)
        super().__init__(parts)


def embedding(config: HieraConfig, width: int, resolution: int | None = None) -> UnitEmbedding:
    """Return the embedding of images; only a position table uses the resolution."""
    return UnitEmbedding(config, width, resolution if config.position == "table" else None)


def attention(
    config: HieraConfig, stage: int, first: bool, width: int, local_stages: int, heads: int
) -> UnitAttention:
    """Return the attention of a block.

    The first block of a stage pools the stage before, and attends as that stage does.
    """
    before = stage - 1 if first and stage else stage
    return UnitAttention(
        config.channels(before, width),
        config.channels(stage, width),
        heads << stage,
        config.head_width,
        config.side(before),
        before < local_stages,
        before < stage,
    )


def perceptron(config: HieraConfig, stage: int, width: int, mlp_ratio: float) -> PreNorm:
    """Return the perceptron of a block."""
    channels = config.channels(stage, width)
    return PreNorm(channels, FeedForward(channels, config.hidden(stage, width, mlp_ratio)))


def block(
    config: HieraConfig,
    stage: int,
    first: bool,
    width: int,
    local_stages: int,
    heads: int,
    mlp_ratio: float,
) -> nn.Sequential:
    """Return a block that mixes tokens, then transforms each alone."""
    parts = OrderedDict[str, nn.Module](
        attention=attention(config, stage, first, width, local_stages, heads),
        perceptron=perceptron(config, stage, width, mlp_ratio),
    )
    return nn.Sequential(parts)


def head(config: HieraConfig, width: int) -> TokenHead:
    """Return the head, which maps tokens to the outputs."""
    channels = config.channels(len(config.depth) - 1, width)
    return TokenHead(channels, config.outputs, config.dropout)
