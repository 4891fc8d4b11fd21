"""Channel counts that suit kernels: waste of loads and products, known without compilation.

Two facts follow from a number of channels alone. Threads load up to 16 bytes at once, but only if
the channels of every pixel begin at a multiple of as many bytes. Products are computed in blocks of
at least 16 x 16, so a smaller layer is padded with zeros, which are multiplied, too. Both hold for
all GPUs that `hwnas.kernels.accelerator` knows.
"""

from __future__ import annotations

import math

__all__ = ["BLOCK", "LOAD_BYTES", "friendly_channels", "idle_products", "load_bytes"]

LOAD_BYTES = 16
"""Most bytes that a thread can load at once."""
BLOCK = 16
"""Least side of a block of a product, and so the least number of channels in a block."""


def load_bytes(channels: int, itemsize: int) -> int:
    """Return the bytes of a pixel's channels that a thread can load at once: 1, 2, 4, 8 or 16.

    Args:
        channels: Channels of a feature map, at least 1.
        itemsize: Bytes of one value.
    """
    return math.gcd(LOAD_BYTES, channels * itemsize)


def idle_products(inputs: int, outputs: int) -> float:
    """Return the share of a pointwise layer's multiplications that are of zeros, from 0 to 1.

    Args:
        inputs: Input channels, at least 1.
        outputs: Output channels, at least 1.
    """
    made = math.prod(math.ceil(channels / BLOCK) * BLOCK for channels in (inputs, outputs))
    return 1 - inputs * outputs / made


def friendly_channels(channels: int) -> tuple[int, int]:
    """Return the nearest numbers of channels, below and above, that waste nothing in any format.

    Args:
        channels: Number of channels, at least 1.

    Returns:
        Two multiples of 16, at least 16; both are ``channels`` if that is a multiple of 16.
    """
    low, high = (round_(channels / BLOCK) * BLOCK for round_ in (math.floor, math.ceil))
    return max(BLOCK, low), high
