"""Streams of images in which some occur again, exactly or with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import ConfigError
from hwnas.search import Split

__all__ = ["RepeatedStream", "StreamSettings"]


@dataclass(frozen=True)
class StreamSettings:
    """Settings of a stream that repeats images.

    Attributes:
        images: Number of images, at least 2.
        repeats: Probability that an image is one of those before it, all equally likely, in 0..1.
        noise: Largest change of a pixel of a repeated image, in levels of 255; 0 for exact repeats.
        seed: Seed of the random numbers.
    """

    images: int = 500
    repeats: float = 0.5
    noise: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images < 2:
            raise ConfigError(f"a stream of {self.images} images; expected at least 2")
        if not 0 <= self.repeats < 1:
            raise ConfigError(
                f"the share of repeats is {self.repeats:g}; expected 0 or more and less than 1"
            )
        if not 0 <= self.noise <= 255:
            raise ConfigError(f"the noise is {self.noise}; expected 0 to 255 levels")


@dataclass(frozen=True, eq=False)
class RepeatedStream:
    """Stream of images with their targets.

    Attributes:
        images: uint8 (N, H, W, C).
        targets: Targets (N, ...).
        is_repeat: Mask of the images that occurred before, (N,).
    """

    images: NDArray[np.uint8]
    targets: NDArray[Any]
    is_repeat: NDArray[np.bool_]

    @classmethod
    def of(cls, split: Split, settings: StreamSettings) -> RepeatedStream:
        """Draw a stream from a split; once all images have occurred, all others are repeats."""
        rng = np.random.default_rng(settings.seed)
        order = rng.permutation(len(split))
        rows, repeats, seen = [], [], 0
        for _ in range(settings.images):
            again = seen > 0 and (seen == len(order) or rng.random() < settings.repeats)
            rows.append(order[rng.integers(seen) if again else seen])
            repeats.append(again)
            seen += not again
        images, targets = split.take(np.array(rows))
        mask = np.array(repeats)
        if settings.noise:
            levels = settings.noise
            noise = rng.integers(-levels, levels, images[mask].shape, np.int16, endpoint=True)
            images = images.copy()
            images[mask] = np.clip(images[mask] + noise, 0, 255).astype(np.uint8)
        return cls(images, targets, mask)
