"""What the configurations of several families are checked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hwnas.errors import ConfigError
from hwnas.search_spaces.layers import hidden_channels

__all__ = ["check_counts", "check_dropout", "check_expansion", "check_sides", "check_stride"]


def check_counts(config: Any, *names: str) -> None:
    """Raise where one of these fields is not at least 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} is {getattr(config, name)}; expected at least 1")


def check_stride(name: str, stride: int) -> None:
    """Raise where a stride is none that blocks have."""
    if stride not in (1, 2):
        raise ConfigError(f"{name} is {stride}; expected 1 or 2")


def check_dropout(dropout: float) -> None:
    """Raise where a network would drop everything, or less than nothing."""
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout is {dropout}; expected a probability in [0, 1)")


def check_sides(resolution: Sequence[int], strides: Sequence[int], remedy: str = "") -> None:
    """Raise where images are smaller than the strides take together.

    Args:
        resolution: Options for the side of the input, in pixels.
        strides: Of all layers that shrink a map.
        remedy: What else than strides and resolution may be changed, with a comma before it.
    """
    total = math.prod(strides)
    if min(resolution) < total:
        raise ConfigError(
            f"images of {min(resolution)} pixels are smaller than the space can take: its strides "
            f"multiply to {total}. Lower space.stem_stride or the strides of the stages{remedy}, "
            f"or set space.resolution to at least {total}"
        )


def check_expansion(place: str, inputs: Sequence[int], ratios: Sequence[float]) -> None:
    """Raise where a smaller block has an expansion layer that the largest one goes without.

    Args:
        place: Of the block, for the message.
        inputs: Channels that it may take; the largest network has the last.
        ratios: Options for its hidden channels; the largest network has the last.
    """
    expands = [[hidden_channels(c, ratio) != c for ratio in ratios] for c in inputs]
    if not expands[-1][-1] and any(any(each) for each in expands):
        raise ConfigError(
            f"{place}.expand_ratio {list(ratios)}: at {ratios[-1]} a block of {inputs[-1]} "
            "channels has no expansion layer to lend to smaller ones; leave out what is below, or "
            "add a larger ratio"
        )
