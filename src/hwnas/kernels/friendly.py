"""Sizes that suit kernels: what numbers of channels waste of a card, before anything is compiled.

Two things follow from a number of channels alone. Threads load up to 16 bytes at once, but only
where every pixel's channels begin at a multiple of that; and products are made in blocks of 16 x
16 at least, so what a layer has less than that is multiplied as zeros. Both are the same on all
cards that `hwnas.kernels.accelerator` knows.
"""

from __future__ import annotations

import math

__all__ = ["BLOCK", "LOAD_BYTES", "friendly_channels", "idle_products", "load_bytes"]

LOAD_BYTES = 16
"""That a thread can load at once."""
BLOCK = 16
"""Least side of a block of a product; so also the least of channels in a block."""


def load_bytes(channels: int, itemsize: int) -> int:
    """Bytes that a thread can load at once of the channels of any pixel: 1 to 16, a power of two.

    Args:
        channels: Of a feature map, at least 1.
        itemsize: Bytes of one value.
    """
    return math.gcd(LOAD_BYTES, channels * itemsize)


def idle_products(inputs: int, outputs: int) -> float:
    """Share of a pointwise layer's multiplications that are of zeros, from 0 to 1.

    Args:
        inputs: Channels in, at least 1.
        outputs: Channels out, at least 1.
    """
    made = math.prod(math.ceil(channels / BLOCK) * BLOCK for channels in (inputs, outputs))
    return 1 - inputs * outputs / made


def friendly_channels(channels: int) -> tuple[int, int]:
    """The nearest numbers of channels that waste nothing in any format: below or equal, and above.

    Args:
        channels: At least 1.

    Returns:
        Multiples of 16; both are at least 16, and the same where ``channels`` is one.
    """
    low, high = (round_(channels / BLOCK) * BLOCK for round_ in (math.floor, math.ceil))
    return max(BLOCK, low), high
