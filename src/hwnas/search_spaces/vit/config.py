"""Configuration of a space of vision transformers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from hwnas.errors import ConfigError
from hwnas.search_spaces.checks import (
    check_counts,
    check_dropout,
    check_mlp_ratio,
    check_position,
    checked_head_width,
)
from hwnas.search_spaces.layers import Position, make_divisible, rank_of, tokens_after
from hwnas.search_spaces.map_sizes import SQUARE, Size, input_size, whole_units
from hwnas.search_spaces.space.choices import checked_options, checked_whole

__all__ = ["VitConfig", "hidden_width"]


@dataclass(frozen=True)
class VitConfig:
    """Configuration of a `VitSpace`. Lists of options go from small networks to large ones.

    Attributes:
        depth: Options for the number of blocks.
        width: Options for the channels of a token.
        heads: Options for each block's number of heads.
        mlp_ratio: Options for each block's hidden channels, as a multiple of the width.
        rank: Options for the rank of each block's linear layers, as a share of the full rank, in
            (0, 1]. If empty, layers are dense; otherwise each is a product of two low-rank ones,
            which for a square layer costs less than a dense one below a share of 0.5.
        patch_size: Options for the side of a patch in pixels, decreasing: smaller patches give more
            tokens. Every token sees as many pixels as the largest patch has, so weights are shared.
            The input is as large as the resolution, rounded to whole patches.
        merging: Options for the share of the tokens that each block merges into others between its
            attention and its perceptron (`TokenMerging`), decreasing, in [0, 0.5].
        resolution: Options for the longer side of the input, in pixels.
        position: Encoding of positions: a depthwise convolution, or a learned table, which needs a
            single patch size.
        head_width: Channels of a head; 0 for the largest width over the largest number of heads.
        in_channels: Channels of the images.
        outputs: Length of the output vector, e.g. the number of classes.
        dropout: Dropout probability, in [0, 1), before the last linear layer.
        aspect: Height and width of the input, as a ratio; the shorter side is rounded to whole
            patches of the largest size.
    """

    depth: tuple[int, ...]
    width: tuple[int, ...]
    heads: tuple[int, ...]
    mlp_ratio: tuple[float, ...] = (4,)
    rank: tuple[float, ...] = ()
    patch_size: tuple[int, ...] = (16,)
    merging: tuple[float, ...] = (0,)
    resolution: tuple[int, ...] = (224,)
    position: Position = "convolution"
    head_width: int = 0
    in_channels: int = 3
    outputs: int = 1000
    dropout: float = 0.0
    aspect: Size = SQUARE

    def __post_init__(self) -> None:
        for name in ("depth", "width", "heads", "resolution"):
            object.__setattr__(self, name, checked_whole(name, getattr(self, name)))
        object.__setattr__(self, "mlp_ratio", checked_options("mlp_ratio", self.mlp_ratio))
        if self.rank:
            object.__setattr__(self, "rank", checked_options("rank", self.rank))
            if max(self.rank) > 1:
                raise ConfigError(f"rank is {list(self.rank)}; expected shares of at most 1")
        check_counts(self, "in_channels", "outputs")
        check_dropout(self.dropout)
        check_position(self.position)
        head_width = checked_head_width(self.head_width, self.width, self.heads)
        object.__setattr__(self, "head_width", head_width)
        object.__setattr__(self, "patch_size", _checked_patches(self))
        object.__setattr__(self, "merging", _checked_merging(self))
        _check_distinct(self)

    def size(self, resolution: int, patch_size: int) -> Size:
        """Return height and width of the input at a resolution, in pixels.

        They are rounded to whole patches of the largest size, and then to whole ones of this size.
        """
        height, width = (
            whole_units(whole_units(side, self.patch_size[0]), patch_size)
            for side in input_size(resolution, self.aspect)
        )
        return height, width

    def grid(self, resolution: int, patch_size: int) -> Size:
        """Return the number of rows and columns of patches at a resolution."""
        height, width = self.size(resolution, patch_size)
        return height // patch_size, width // patch_size

    def tokens(self, resolution: int, patch_size: int, merging: float) -> tuple[int, ...]:
        """Return the number of tokens of an image before each block, and after the last one."""
        blocks = range(max(self.depth))
        start = math.prod(self.grid(resolution, patch_size))
        return tuple(
            itertools.accumulate(blocks, lambda left, _: tokens_after(left, merging), initial=start)
        )

    @property
    def ranks(self) -> tuple[float | None, ...]:
        """Options for ranks; a single None if layers are dense."""
        return self.rank or (None,)


def hidden_width(width: int, ratio: float) -> int:
    """Return the channels between the two layers of a block's multilayer perceptron."""
    return make_divisible(width * ratio)


def _checked_patches(config: VitConfig) -> tuple[int, ...]:
    sizes = checked_whole("patch_size, from its end,", tuple(reversed(config.patch_size)))
    largest = sizes[-1]
    for resolution in config.resolution:
        if resolution < largest:
            raise ConfigError(
                f"images of {resolution} pixels are smaller than a patch of {largest}; lower "
                f"space.patch_size, or set space.resolution to at least {largest}"
            )
        if resolution % largest:
            raise ConfigError(
                f"resolution {resolution} is not a multiple of the largest patch size {largest}; "
                "choose resolutions that it divides"
            )
    if len({size % 2 for size in sizes}) > 1:
        raise ConfigError(
            f"patch_size {list(config.patch_size)} mixes even and odd; patches share a centre, so "
            "choose one or the other"
        )
    if config.position == "table" and len(sizes) > 1:
        raise ConfigError(
            f'position = "table" needs a single patch size, not {list(config.patch_size)}: tokens '
            'of one position would read the entry of another; use position = "convolution"'
        )
    return tuple(reversed(sizes))


def _checked_merging(config: VitConfig) -> tuple[float, ...]:
    """Return the options with whole numbers as integers, or raise if one makes no sense."""
    options = config.merging
    falling = list(options) == sorted(set(options), reverse=True)
    if not options or not falling or options[0] > 0.5 or options[-1] < 0:
        raise ConfigError(
            f"merging is {list(options)}; expected decreasing shares of at most 0.5, none below 0"
        )
    for resolution, patch in itertools.product(config.resolution, config.patch_size):
        counts = [config.tokens(resolution, patch, share)[1] for share in options]
        if len(set(counts)) < len(counts):
            raise ConfigError(
                f"merging {list(options)} leaves {counts} tokens after one block, of images of "
                f"{resolution} pixels with patches of {patch}; choose shares further apart"
            )
    return tuple(int(share) if share == int(share) else share for share in options)


def _check_distinct(config: VitConfig) -> None:
    """Raise if rounding makes two options the same network, which would then have two ids."""
    check_mlp_ratio(config.mlp_ratio, config.width)
    for width in config.width:
        hidden = [hidden_width(width, ratio) for ratio in config.mlp_ratio]
        for heads, channels in itertools.product(config.heads, hidden):
            inner = heads * config.head_width
            ranks = [(rank_of(width, inner, r), rank_of(width, channels, r)) for r in config.rank]
            if len(set(ranks)) < len(ranks):
                raise ConfigError(
                    f"rank {list(config.rank)} gives the ranks {ranks} at width {width} with "
                    f"{heads} heads; ranks are multiples of 8, so choose shares further apart"
                )
