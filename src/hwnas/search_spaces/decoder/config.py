"""Configuration of a space of decoder language models."""

from __future__ import annotations

from dataclasses import dataclass

from hwnas.errors import ConfigError
from hwnas.search_spaces.checks import (
    check_counts,
    check_dropout,
    check_mlp_ratio,
    checked_head_width,
)
from hwnas.search_spaces.layers import make_divisible
from hwnas.search_spaces.space.choices import checked_options, checked_whole

__all__ = ["DecoderConfig"]


@dataclass(frozen=True)
class DecoderConfig:
    """Configuration of a `DecoderSpace`. Lists of options go from small networks to large ones.

    Attributes:
        depth: Options for the number of blocks.
        width: Options for the channels of a token.
        heads: Options for each block's number of heads.
        mlp_ratio: Options for each block's hidden channels, as a multiple of the width.
        head_width: Channels of a head; 0 for the largest width over the largest number of heads.
        resolution: Tokens that a network sees, a single number.
        tokens: Number of different tokens of the input; bytes have 256 values.
        in_channels: Channels of the input, 1.
        outputs: Number of different tokens that may follow.
        dropout: Dropout probability, in [0, 1), before the last linear layer.
    """

    depth: tuple[int, ...]
    width: tuple[int, ...]
    heads: tuple[int, ...]
    mlp_ratio: tuple[float, ...] = (4,)
    head_width: int = 0
    resolution: tuple[int, ...] = (128,)
    tokens: int = 256
    in_channels: int = 1
    outputs: int = 255
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("depth", "width", "heads", "resolution"):
            object.__setattr__(self, name, checked_whole(name, getattr(self, name)))
        object.__setattr__(self, "mlp_ratio", checked_options("mlp_ratio", self.mlp_ratio))
        check_counts(self, "tokens", "in_channels", "outputs")
        check_dropout(self.dropout)
        head_width = checked_head_width(self.head_width, self.width, self.heads)
        object.__setattr__(self, "head_width", head_width)
        if len(self.resolution) > 1:
            raise ConfigError(
                f"resolution is {list(self.resolution)}; a network sees as many tokens as the "
                "windows of the data have, so leave space.resolution out"
            )
        if self.in_channels != 1:
            raise ConfigError(
                f"space decoder takes tokens, but the data have {self.in_channels} channels; set "
                'data.source = "text:PATH", or choose another space'
            )
        check_mlp_ratio(self.mlp_ratio, self.width)

    def hidden(self, width: int, ratio: float) -> int:
        """Return the channels between the layers of a perceptron."""
        return make_divisible(width * ratio)
