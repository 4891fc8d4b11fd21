"""Checks of configuration values that several families of networks share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from hwnas.errors import ConfigError
from hwnas.search_spaces.layers import Position, hidden_channels, make_divisible
from hwnas.search_spaces.map_sizes import Size, input_size

__all__ = [
    "OperatorWeights",
    "check_counts",
    "check_dropout",
    "check_expansion",
    "check_mlp_ratio",
    "check_position",
    "check_sides",
    "check_stride",
    "checked_head_width",
    "checked_weights",
]

OperatorWeights = Literal["shared", "own"]
"""Whether operators among which a choice selects share weights in a supernet."""


def check_counts(config: Any, *names: str) -> None:
    """Raise if one of these fields is less than 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} is {getattr(config, name)}; expected at least 1")


def check_stride(name: str, stride: int) -> None:
    """Raise if a stride is neither 1 nor 2."""
    if stride not in (1, 2):
        raise ConfigError(f"{name} is {stride}; expected 1 or 2")


def check_dropout(dropout: float) -> None:
    """Raise if a dropout probability is not in [0, 1)."""
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout is {dropout}; expected a probability in [0, 1)")


def check_position(position: Position) -> None:
    """Raise if there is no such encoding of positions."""
    if position not in get_args(Position):
        raise ConfigError(f"position is {position!r}; expected convolution or table")


def checked_head_width(head_width: int, width: Sequence[int], heads: Sequence[int]) -> int:
    """Return the channels of an attention head.

    Args:
        head_width: Value of the configuration; 0 for the largest width over the largest number of
            heads.
        width: Options for the channels of a token.
        heads: Options for the number of heads.

    Raises:
        ConfigError: The value is negative, or the heads do not divide the width.
    """
    if head_width < 0:
        raise ConfigError(f"head_width is {head_width}; expected at least 1, or 0 for auto")
    if head_width:
        return int(head_width)
    if max(width) % max(heads):
        raise ConfigError(
            f"{max(heads)} heads do not divide the width {max(width)}; choose numbers of heads "
            "whose largest divides the largest width, or set head_width"
        )
    return max(width) // max(heads)


def checked_weights(value: OperatorWeights) -> OperatorWeights:
    """Return the value of ``operator_weights``, or raise if there is no such value."""
    if value not in get_args(OperatorWeights):
        raise ConfigError(f"operator_weights is {value!r}; expected 'shared' or 'own'")
    return value


def check_sides(
    resolution: Sequence[int], aspect: Size, strides: Sequence[int], remedy: str = ""
) -> None:
    """Raise if the smallest image is smaller than the product of the strides.

    Args:
        resolution: Options for the longer side of the input, in pixels.
        aspect: Height and width of the input, as a ratio.
        strides: Strides of all layers that shrink a feature map.
        remedy: Remedy besides changing strides or resolution, for the message, with a comma before.

    Raises:
        ConfigError: The images are too small, or the ratio is not above 0.
    """
    if min(aspect) < 1:
        raise ConfigError(f"aspect is {aspect}; expected a height and a width of at least 1")
    total, size = math.prod(strides), input_size(min(resolution), aspect)
    if min(size) < total:
        shape = f"{size[0]}" if size[0] == size[1] else f"{size[0]} x {size[1]}"
        least = -(-total * max(aspect) // min(aspect))
        raise ConfigError(
            f"images of {shape} pixels are too small for the space: its strides multiply "
            f"to {total}. Lower space.stem_stride or the strides of the stages{remedy}, or set "
            f"space.resolution to at least {least}"
        )


def check_mlp_ratio(ratios: Sequence[float], widths: Iterable[int]) -> None:
    """Raise if rounding makes two ratios of a perceptron's hidden channels the same network.

    Args:
        ratios: Options for the ratio.
        widths: Channels of the perceptrons' inputs.
    """
    for width in widths:
        hidden = [make_divisible(width * ratio) for ratio in ratios]
        if len(set(hidden)) < len(hidden):
            raise ConfigError(
                f"mlp_ratio {list(ratios)} gives {hidden} hidden channels at width {width}; choose "
                "ratios further apart"
            )


def check_expansion(place: str, inputs: Sequence[int], ratios: Sequence[float]) -> None:
    """Raise if a smaller block has an expansion layer that the largest block lacks.

    Args:
        place: Name of the block, for the message.
        inputs: Options for the block's input channels; the largest network has the last.
        ratios: Options for the expansion ratio; the largest network has the last.
    """
    expands = [[hidden_channels(c, ratio) != c for ratio in ratios] for c in inputs]
    if not expands[-1][-1] and any(any(each) for each in expands):
        raise ConfigError(
            f"{place}.expand_ratio {list(ratios)}: at {ratios[-1]} a block of {inputs[-1]} "
            "channels has no expansion layer, but smaller blocks need its weights; leave out the "
            "smaller ratios, or add a larger one"
        )
