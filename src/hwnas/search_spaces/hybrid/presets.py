"""Named configurations of convolution and attention, fitted to a size of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hwnas.search_spaces.hybrid.config import BlockKind, HybridConfig, HybridStage
from hwnas.search_spaces.presets import sevenths

__all__ = ["PRESETS"]

_ANY: tuple[BlockKind, ...] = ("convolution", "attention", "both")


def _tiny(image_shape: tuple[int, int, int]) -> HybridConfig:
    return HybridConfig(
        stages=(
            HybridStage(16, 1, (1, 2), expand_ratio=(2, 4), fused="all"),
            HybridStage(32, 2, (1, 2, 3), _ANY, (2, 4), (1, 2)),
            HybridStage(64, 2, (1, 2, 3), _ANY, (2, 4), (1, 2)),
        ),
        resolution=sevenths(image_shape, 7, 14),
        stem_stride=1,
        head_channels=128,
        feature_channels=128,
    )


def _small(image_shape: tuple[int, int, int]) -> HybridConfig:
    return HybridConfig(
        stages=(
            HybridStage(24, 1, (1, 2), expand_ratio=(2, 4), fused="all"),
            HybridStage(32, 2, (1, 2, 3), ("convolution", "both"), (2, 4), (2, 4), "first", 2),
            HybridStage(64, 2, (1, 2, 3, 4), _ANY, (2, 4), (2, 4), "first", 1),
            HybridStage(96, 2, (1, 2, 3), _ANY, (2, 4), (2, 4), "first", 1),
        ),
        resolution=sevenths(image_shape, 6, 7),
        width=(0.5, 1.0),
        stem_stride=1,
        head_channels=256,
        feature_channels=256,
    )


def _large(image_shape: tuple[int, int, int]) -> HybridConfig:
    """Return a space around LowFormer-B0, with attention as an option of every later block."""
    return HybridConfig(
        stages=(
            HybridStage(32, 2, (1, 2), expand_ratio=(2, 4), fused="all"),
            HybridStage(64, 2, (1, 2, 3), ("convolution", "both"), (2, 4), (2, 4), "first", 2),
            HybridStage(128, 2, (2, 3, 4, 5), _ANY, (2, 4), (2, 4), "first", 2),
            HybridStage(256, 2, (2, 3, 4, 5), _ANY, (2, 4), (2, 4), "first", 1),
        ),
        resolution=sevenths(image_shape, 5, 6, 7),
        width=(0.75, 1.0),
        dropout=0.1,
    )


def _lowformer_b0(image_shape: tuple[int, int, int]) -> HybridConfig:
    """Return the authors' network, except that all convolutions have normalisations, not biases."""
    return HybridConfig(
        stages=(
            HybridStage(32, fused="all"),
            HybridStage(64, fused="all"),
            HybridStage(128, 2, (4,), ("both",), fused="all", attention_stride=2),
            HybridStage(256, 2, (5,), ("both",), fused="first"),
        ),
        resolution=sevenths(image_shape, 7),
    )


PRESETS: Mapping[str, Callable[[tuple[int, int, int]], HybridConfig]] = {
    "tiny": _tiny,
    "small": _small,
    "large": _large,
    "lowformer-b0": _lowformer_b0,
}
