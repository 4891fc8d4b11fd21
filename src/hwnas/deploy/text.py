"""Text of networks that predict the next byte."""

from __future__ import annotations

import string
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["BYTE_NAMES", "continued", "window_of"]

_SHOWN = set(string.ascii_letters + string.digits + string.punctuation + " ")

BYTE_NAMES = tuple(chr(n) if chr(n) in _SHOWN else f"\\x{n:02x}" for n in range(255))
"""Names of the outputs: characters of ASCII as they are, other bytes as two digits."""


def window_of(text: bytes, length: int) -> tuple[NDArray[np.uint8], int]:
    """Return the last bytes of a text as an image (1, 1, length, 1), and how many there are.

    A shorter text is filled up at its end, which no earlier output depends on.
    """
    last = np.frombuffer(text[-length:], dtype=np.uint8)
    window = np.zeros((1, 1, length, 1), dtype=np.uint8)
    window[0, 0, : len(last), 0] = last
    return window, len(last)


def continued(
    predict: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
    prompt: bytes,
    count: int,
    length: int,
    temperature: float = 0.0,
    rng: np.random.Generator | None = None,
) -> bytes:
    """Return the bytes that a network adds to a prompt, one after the other.

    Args:
        predict: Function from windows, uint8 (1, 1, length, 1), to logits (1, 255, 1, length).
        prompt: Text to continue, at least one byte.
        count: Number of bytes to add.
        length: Bytes that the network sees.
        temperature: Divisor of the logits before a byte is drawn; 0 for the most probable byte.
        rng: Source of randomness; seeded with 0 if None.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    text = bytearray(prompt)
    for _ in range(count):
        window, known = window_of(bytes(text), length)
        logits = predict(window)[0, :, 0, known - 1].astype(np.float64)
        if temperature:
            logits = logits / temperature + rng.gumbel(size=len(logits))
        text.append(int(logits.argmax()))
    return bytes(text[len(prompt) :])
