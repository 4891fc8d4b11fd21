"""Numbers of channels that kernels like: multiples of eight."""

from __future__ import annotations

__all__ = ["hidden_channels", "make_divisible", "scaled_channels"]


def make_divisible(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of ``divisor``, never more than 10% below (MobileNet's rounding)."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def scaled_channels(channels: int, width: float) -> int:
    """Channels at a width multiplier, rounded as MobileNet rounds them."""
    return make_divisible(channels * width)


def hidden_channels(channels: int, ratio: float) -> int:
    """Channels of a depthwise convolution whose block takes ``channels``."""
    return channels if ratio == 1 else make_divisible(channels * ratio)
