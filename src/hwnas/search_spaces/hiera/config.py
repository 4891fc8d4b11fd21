"""Configuration of a space of hierarchical vision transformers."""

from __future__ import annotations

from dataclasses import dataclass

from hwnas.errors import ConfigError
from hwnas.search_spaces.checks import (
    check_counts,
    check_dropout,
    check_mlp_ratio,
    check_position,
    checked_head_width,
)
from hwnas.search_spaces.layers import Position, make_divisible
from hwnas.search_spaces.map_sizes import SQUARE, Size, input_size, whole_units
from hwnas.search_spaces.space.choices import checked_options, checked_whole

__all__ = ["HieraConfig"]


@dataclass(frozen=True)
class HieraConfig:
    """Configuration of a `HieraSpace`.

    Lists of options go from small networks to large ones. Each stage after the first has a quarter
    of the tokens of the stage before and twice the channels and heads.

    Attributes:
        depth: Options for the number of blocks of each stage.
        width: Options for the channels of a token in the first stage.
        heads: Options for each block's number of heads, as that of a block in the first stage.
        mlp_ratio: Options for each block's hidden channels, as a multiple of its channels.
        local_stages: Options for the number of stages, from the first, whose attention stays within
            a mask unit; decreasing. Later stages attend to all tokens.
        mask_unit: Side of a mask unit in the first stage, in tokens; a quarter of its tokens remain
            in each further stage.
        patch_size: Distance of tokens in pixels; a token sees one pixel less than two patches.
        resolution: Options for the longer side of the input, in pixels.
        position: Encoding of positions: a depthwise convolution, or a learned table.
        head_width: Channels of a head; 0 for the largest width over the largest number of heads.
        in_channels: Channels of the images.
        outputs: Length of the output vector, e.g. the number of classes.
        dropout: Dropout probability, in [0, 1), before the last linear layer.
        aspect: Height and width of the input, as a ratio; the shorter side is rounded to whole mask
            units.
    """

    depth: tuple[tuple[int, ...], ...]
    width: tuple[int, ...]
    heads: tuple[int, ...]
    mlp_ratio: tuple[float, ...] = (4,)
    local_stages: tuple[int, ...] = (2,)
    mask_unit: int = 8
    patch_size: int = 4
    resolution: tuple[int, ...] = (224,)
    position: Position = "convolution"
    head_width: int = 0
    in_channels: int = 3
    outputs: int = 1000
    dropout: float = 0.0
    aspect: Size = SQUARE

    def __post_init__(self) -> None:
        for name in ("width", "heads", "resolution"):
            object.__setattr__(self, name, checked_whole(name, getattr(self, name)))
        object.__setattr__(self, "mlp_ratio", checked_options("mlp_ratio", self.mlp_ratio))
        if not self.depth:
            raise ConfigError("depth is empty; a network needs at least one stage")
        depths = tuple(checked_whole(f"depth[{s}]", each) for s, each in enumerate(self.depth))
        object.__setattr__(self, "depth", depths)
        check_counts(self, "mask_unit", "patch_size", "in_channels", "outputs")
        check_dropout(self.dropout)
        check_position(self.position)
        width = checked_head_width(self.head_width, self.width, self.heads)
        object.__setattr__(self, "head_width", width)
        _check_units(self)
        object.__setattr__(self, "local_stages", _checked_local(self))
        stages = range(len(self.depth))
        check_mlp_ratio(
            self.mlp_ratio, [self.channels(s, width) for s in stages for width in self.width]
        )

    @property
    def unit_pixels(self) -> int:
        """Side of a mask unit, in pixels."""
        return self.mask_unit * self.patch_size

    def size(self, resolution: int) -> Size:
        """Return height and width of the input at a resolution, in pixels."""
        height, width = (
            whole_units(side, self.unit_pixels) for side in input_size(resolution, self.aspect)
        )
        return height, width

    def grid(self, resolution: int) -> Size:
        """Return the number of rows and columns of tokens in the first stage."""
        height, width = self.size(resolution)
        return height // self.patch_size, width // self.patch_size

    def side(self, stage: int) -> int:
        """Return the side of a mask unit in a stage, in tokens."""
        return self.mask_unit >> stage

    def channels(self, stage: int, width: int) -> int:
        """Return the channels of a token in a stage."""
        return width << stage

    def hidden(self, stage: int, width: int, ratio: float) -> int:
        """Return the channels between the layers of a perceptron."""
        return make_divisible(self.channels(stage, width) * ratio)


def _check_units(config: HieraConfig) -> None:
    halvings = len(config.depth) - 1
    if config.mask_unit % 2**halvings:
        raise ConfigError(
            f"mask_unit is {config.mask_unit}, but {len(config.depth)} stages halve it {halvings} "
            f"times; choose a multiple of {2**halvings}, or fewer stages in depth"
        )
    unit = config.unit_pixels
    for resolution in config.resolution:
        if resolution < unit:
            raise ConfigError(
                f"images of {resolution} pixels are smaller than a mask unit of {unit} pixels; "
                "lower space.mask_unit or space.patch_size, or set space.resolution to at least "
                f"{unit}"
            )
        if resolution % unit:
            raise ConfigError(
                f"resolution {resolution} is not a multiple of {unit}, the pixels of a mask unit; "
                "choose resolutions that are"
            )


def _checked_local(config: HieraConfig) -> tuple[int, ...]:
    """Return the options of local stages as integers, or raise if one makes no sense."""
    options, most = config.local_stages, len(config.depth)
    falling = list(options) == sorted(set(options), reverse=True)
    if not options or not falling or any(not 0 <= n <= most or n != int(n) for n in options):
        raise ConfigError(
            f"local_stages is {list(options)}; expected decreasing whole numbers from {most} to 0"
        )
    deepest = int(options[0])
    if deepest and config.side(deepest - 1) == 1:
        raise ConfigError(
            f"local_stages is {list(options)}, but mask units of stage {deepest} hold one token, "
            "which has nothing to attend to; lower local_stages or raise mask_unit"
        )
    single = [r for r in config.resolution if set(config.grid(r)) == {config.mask_unit}]
    if len(options) > 1 and single:
        raise ConfigError(
            f"local_stages {list(options)} are the same network at {single[0]} pixels, where one "
            "mask unit holds the whole image; choose one option, or a smaller mask_unit"
        )
    return tuple(int(option) for option in options)
