"""Configuration of an EDSR space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hwnas.errors import ConfigError
from hwnas.search_spaces.checks import check_counts
from hwnas.search_spaces.layers import make_divisible
from hwnas.search_spaces.map_sizes import SQUARE, Size, input_size
from hwnas.search_spaces.space.choices import checked_options, checked_whole

__all__ = ["BodyBlock", "EdsrConfig"]

BodyBlock = Literal["separable", "fused", "dense"]


@dataclass(frozen=True)
class EdsrConfig:
    """Configuration of an `EdsrSpace`. Lists of numbers go from small to large.

    Attributes:
        channels: Options for the channels of all blocks' inputs and outputs.
        depth: Options for the number of residual blocks.
        expand_ratio: Options for the channels within a block, as a multiple of those of its input.
        blocks: Options for the layers of a block, each with weights of its own: ``"separable"``, a
            pointwise, a depthwise 3x3 and a pointwise convolution; ``"fused"``, a 3x3 and a
            pointwise convolution; or ``"dense"``, two 3x3 convolutions, as in EDSR.
        normalisation: ``"none"``, as in EDSR; or ``"adaptive"``: the input of a block's layers is
            batch-normalised, and their output is multiplied by a learned linear function of the
            standard deviation of the block's input, for each image (ADQ of QuantNAS, Shvetsov et
            al., IEEE Access 2024, after AdaDM, Liu et al., 2021). So the layers see inputs of one
            range, which few bits suit better, and the block restores the deviation of its input.
        upscale: Number of times that a picture is as large as its image, in each direction.
        resolution: Longer side of the images in pixels, a single number.
        in_channels: Channels of the images.
        outputs: Channels of the pictures.
        aspect: Height and width of the images, as a ratio.
    """

    channels: tuple[int, ...] = (16, 24, 32)
    depth: tuple[int, ...] = (2, 3, 4)
    expand_ratio: tuple[float, ...] = (1.0, 2.0)
    blocks: tuple[BodyBlock, ...] = ("dense",)
    normalisation: Literal["none", "adaptive"] = "none"
    upscale: int = 2
    resolution: tuple[int, ...] = (32,)
    in_channels: int = 3
    outputs: int = 3
    aspect: Size = SQUARE

    def __post_init__(self) -> None:
        for name in ("channels", "depth", "resolution"):
            object.__setattr__(self, name, checked_whole(name, getattr(self, name)))
        ratios = checked_options("expand_ratio", self.expand_ratio)
        object.__setattr__(self, "expand_ratio", ratios)
        if self.normalisation not in ("none", "adaptive"):
            raise ConfigError(
                f"normalisation is {self.normalisation!r}; expected 'none' or 'adaptive'"
            )
        check_counts(self, "upscale", "in_channels", "outputs")
        if len(self.resolution) > 1:
            raise ConfigError(
                f"resolution is {list(self.resolution)}; networks that make pictures take images "
                "at their own size, so leave space.resolution out"
            )
        unknown = [name for name in self.blocks if name not in get_args(BodyBlock)]
        if unknown or not self.blocks or len(set(self.blocks)) < len(self.blocks):
            raise ConfigError(
                f"blocks is {list(self.blocks)}; expected one or more of "
                f"{', '.join(get_args(BodyBlock))}, none twice"
            )
        in_order = sorted(self.blocks, key=get_args(BodyBlock).index)
        object.__setattr__(self, "blocks", tuple(in_order))
        for channels in self.channels:
            hidden = [self.hidden_at(channels, ratio) for ratio in ratios]
            if len(set(hidden)) < len(hidden):
                raise ConfigError(
                    f"expand_ratio {list(ratios)} gives {hidden} channels in blocks of {channels}; "
                    "choose ratios further apart"
                )

    def hidden_at(self, channels: int, ratio: float) -> int:
        """Return the channels within a block."""
        return make_divisible(channels * ratio)

    @property
    def input_size(self) -> Size:
        """Height and width of the images."""
        return input_size(self.resolution[0], self.aspect)

    @property
    def anchored(self) -> bool:
        """True if networks add the enlarged image to their outputs."""
        return self.in_channels == self.outputs
