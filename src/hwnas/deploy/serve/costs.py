"""How much memory a request takes, known before any of it is taken.

Upper bounds in bytes, from the sizes alone. The factors follow the copies that are made on the way;
``tests/deploy/serve/test_costs.py`` holds them against the memory that is really taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hwnas.deploy.io import Preprocessing
from hwnas.deploy.serve.image_header import ImageHeader
from hwnas.errors import ArtifactError

__all__ = ["OVERHEAD_BYTES", "Answering", "RequestCosts", "json_bytes"]

OVERHEAD_BYTES = 2**20
"""Of any request: its thread, its headers, and what is too small to be counted."""
_UNPACKED_TEXT = 5 * 2**20  # a megabyte of packed text, four bytes a character, and the packed one
_MOST_TEXTS = 64  # Pillow refuses more than 64 MB of them
_DEEP = 24  # 16 bits are scaled in 32-bit numbers, in several steps
_FLOAT = 4

Answering = Literal["meaning", "numbers", "mask", "binary"]
"""In what form outputs are sent: a sentence or JSON, a PNG, or bytes."""
_OUTPUT_NUMBER: Mapping[Answering, int] = {"meaning": 40, "numbers": 250, "mask": 16, "binary": 24}
"""Bytes of each number that comes out of the network, with the copies made of it on the way."""


@dataclass(frozen=True)
class RequestCosts:
    """Memory that requests to one network take.

    Attributes:
        preprocessing: Of the network.
        outputs: How many numbers come out of it for each image.
        labels: How many classes there are; for masks.
    """

    preprocessing: Preprocessing
    outputs: int
    labels: int

    @classmethod
    def of(
        cls, preprocessing: Preprocessing, description: Mapping[str, Any], labels: int
    ) -> RequestCosts:
        """Read the outputs' shape from a bundle's description.

        Raises:
            ArtifactError: It is not there.
        """
        try:
            shape = [int(size) for size in description["outputs"]["shape"][1:]]
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(
                f"bundle.json does not say the shape of the outputs: {error!r}"
            ) from error
        return cls(preprocessing, math.prod(shape), labels)

    @property
    def inputs(self) -> int:
        """Numbers that go into the network for each image."""
        return math.prod(self.preprocessing.input_shape)

    def file(self, header: ImageHeader, body: int, answering: Answering) -> int:
        """Return the bytes for an image file: decoded, prepared, run and answered.

        Args:
            header: Of the file.
            body: Bytes of the file.
            answering: In what form the outputs are sent.
        """
        pixels, channels = header.width * header.height, self.preprocessing.channels
        stored, kept = _pillow_bytes(header.channels), _pillow_bytes(channels)
        decoded = pixels * (2 * stored + kept + 3 * channels) + 3 * body
        decoded += pixels * 2 * header.channels * header.is_jpeg  # coefficients, in 16 bits
        decoded += pixels * _DEEP * header.is_deep
        decoded += _UNPACKED_TEXT * min(header.packed_texts, _MOST_TEXTS)
        # Rows are scaled first; an image that lies on its side may have as many as it is wide.
        rows = max(header.width, header.height, self.preprocessing.height)
        scaled = _FLOAT * channels * rows * self.preprocessing.width
        prepared = pixels * channels * (1 + _FLOAT) + scaled
        mask = pixels * (_FLOAT * self.labels + 16) if answering == "mask" else 0
        answered = pixels * channels + mask
        return max(decoded, prepared, answered) + self.images(1, answering)

    def images(self, count: int, answering: Answering) -> int:
        """Return the bytes for images of the network's own size: prepared, run and answered."""
        each = (2 + 4 * _FLOAT) * self.inputs + _OUTPUT_NUMBER[answering] * self.outputs
        return count * each + OVERHEAD_BYTES


def json_bytes(body: bytes) -> int:
    """Return the bytes that JSON may take once it is read, by what could be in it.

    Counted are separators, since a value of two characters can take dozens of bytes.
    """
    count = body.count
    text = len(body) * (2 if body.isascii() else 9)
    values = 60 * count(b",") + 64 * count(b'"') + 160 * count(b":")
    return text + values + 100 * count(b"[") + 240 * count(b"{") + OVERHEAD_BYTES


def _pillow_bytes(channels: int) -> int:
    """Return what Pillow takes for a pixel: one byte for grey, otherwise four."""
    return 1 if channels == 1 else 4
