"""Estimates of the memory that a request takes, before any of it is allocated.

The estimates are upper bounds in bytes, computed from sizes alone. Their factors count the copies
made during processing; ``tests/deploy/serve/test_costs.py`` compares them with the memory that is
really taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hwnas.deploy.io import Preprocessing
from hwnas.deploy.serve.image_header import ImageHeader

__all__ = ["OVERHEAD_BYTES", "Answering", "RequestCosts", "json_bytes"]

OVERHEAD_BYTES = 2**20
"""Memory of any request for its thread, its headers, and all that is too small to count."""
_UNPACKED_TEXT = 5 * 2**20  # 1 MB of text at four bytes a character, and its packed form
_MOST_TEXTS = 64  # Pillow refuses more than 64 MB of text
_DEEP = 24  # 16-bit values are scaled in 32-bit numbers, in several steps
_WEIGHTS = 16  # bytes of scaling weights for each row and column
_FLOAT = 4

Answering = Literal["meaning", "numbers", "mask", "binary"]
"""Form in which outputs are sent: meanings or numbers in JSON, a mask as PNG, or binary data."""
_OUTPUT_NUMBER: Mapping[Answering, int] = {"meaning": 40, "numbers": 250, "mask": 16, "binary": 24}
"""Bytes for each number of the network's output, including the copies made of it."""


@dataclass(frozen=True)
class RequestCosts:
    """Memory that requests to one network take.

    Attributes:
        preprocessing: Preprocessing of the network's images.
        outputs: Number of output values for each image.
        labels: Number of classes, needed for masks.
    """

    preprocessing: Preprocessing
    outputs: int
    labels: int

    @property
    def inputs(self) -> int:
        """Number of input values for each image."""
        return math.prod(self.preprocessing.input_shape)

    def file(self, header: ImageHeader, body: int, answering: Answering) -> int:
        """Return the bytes needed to decode, prepare, run and answer an image file.

        Args:
            header: Header of the file.
            body: Size of the file in bytes.
            answering: Form in which the outputs are sent.
        """
        pixels, channels = header.width * header.height, self.preprocessing.channels
        stored, kept = _pillow_bytes(header.channels), _pillow_bytes(channels)
        decoded = pixels * (2 * stored + kept + 3 * channels) + 3 * body
        decoded += pixels * 2 * header.channels * header.is_jpeg  # coefficients, in 16 bits
        decoded += pixels * _DEEP * header.is_deep
        decoded += _UNPACKED_TEXT * min(header.packed_texts, _MOST_TEXTS)
        # Rows are scaled first; a rotated image may have as many rows as it is wide.
        rows = max(header.width, header.height, self.preprocessing.height)
        scaled = _FLOAT * channels * rows * self.preprocessing.width
        scaled += _WEIGHTS * (header.width + header.height)
        prepared = pixels * channels * (1 + _FLOAT) + scaled
        mask = pixels * (_FLOAT * self.labels + 16) if answering == "mask" else 0
        answered = pixels * channels + mask
        return max(decoded, prepared, answered) + self.images(1, answering)

    def images(self, count: int, answering: Answering) -> int:
        """Return the bytes needed to prepare, run and answer images of the network's own size."""
        each = (2 + 4 * _FLOAT) * self.inputs + _OUTPUT_NUMBER[answering] * self.outputs
        return count * each + OVERHEAD_BYTES


def json_bytes(body: bytes) -> int:
    """Return an upper bound on the bytes that JSON takes once it is parsed.

    The bound counts separators, because a value of two characters can take dozens of bytes.
    """
    count = body.count
    text = len(body) * (2 if body.isascii() else 9)
    values = 60 * count(b",") + 64 * count(b'"') + 160 * count(b":")
    return text + values + 100 * count(b"[") + 240 * count(b"{") + OVERHEAD_BYTES


def _pillow_bytes(channels: int) -> int:
    """Return the bytes that Pillow takes for a pixel: one for grey, otherwise four."""
    return 1 if channels == 1 else 4
