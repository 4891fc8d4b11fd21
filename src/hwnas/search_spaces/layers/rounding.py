"""Rounding of channels to multiples of eight, for fast kernels."""

from __future__ import annotations

__all__ = ["hidden_channels", "make_divisible", "scaled_channels"]


def make_divisible(channels: float, divisor: int = 8) -> int:
    """Return the nearest multiple of ``divisor``, never over 10% below (MobileNet's rounding)."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def scaled_channels(channels: int, width: float) -> int:
    """Return the channels at a width multiplier, with MobileNet's rounding."""
    return make_divisible(channels * width)


def hidden_channels(channels: int, ratio: float) -> int:
    """Return the hidden channels of a block with ``channels`` inputs; as many for ratio 1."""
    return channels if ratio == 1 else make_divisible(channels * ratio)
