"""Named MobileNet configurations: fitted to a size of images, or published."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from hwnas.search_spaces.mobilenet.config import MobileNetConfig, Stage
from hwnas.search_spaces.presets import sevenths

__all__ = ["PRESETS"]

# FBNet's candidate blocks (Wu et al., CVPR 2019, table 2), from small to large.
_FBNET = ("skip", *(f"k{k}_{e}" for k in (3, 5) for e in ("e1_g2", "e1", "e3", "e6")))
_LEAST_MAP = 3.5  # least side in pixels of the last map, that of 112 pixels after five strides of 2
_SMALL_SIDE = 96  # in pixels; up to this side FBNet has smaller strides and a smaller head


def _tiny(image_shape: tuple[int, int, int]) -> MobileNetConfig:
    side = max(image_shape[:2])
    kernels, ratios = (3, 5), (3, 4, 6)
    return MobileNetConfig(
        stages=(
            Stage(16, 1, (1, 2), kernels, ratios, activation="relu"),
            Stage(24, 2, (1, 2, 3), kernels, ratios),
            Stage(40, 2, (1, 2, 3), kernels, ratios, squeeze_excite=True),
        ),
        resolution=tuple(sorted({side, side * 3 // 2, side * 2})),
        width=(0.5, 1.0),
        stem_channels=16,
        stem_stride=1,
        head_channels=120,
        feature_channels=160,
    )


def _small(image_shape: tuple[int, int, int]) -> MobileNetConfig:
    kernels, ratios = (3, 5, 7), (3, 4, 6)
    return MobileNetConfig(
        stages=(
            Stage(16, 1, (1, 2), kernels, ratios, activation="relu"),
            Stage(24, 2, (1, 2, 3, 4), kernels, ratios, activation="relu"),
            Stage(40, 2, (1, 2, 3, 4), kernels, ratios, squeeze_excite=True),
            Stage(80, 1, (1, 2, 3, 4), kernels, ratios, squeeze_excite=True),
        ),
        resolution=sevenths(image_shape, 5, 6, 7),
        width=(0.5, 0.75, 1.0),
        stem_channels=16,
        stem_stride=1,
        head_channels=240,
        feature_channels=320,
    )


def _large(image_shape: tuple[int, int, int]) -> MobileNetConfig:
    depths, kernels, ratios = (2, 3, 4), (3, 5, 7), (3, 4, 6)
    return MobileNetConfig(
        stages=(
            Stage(16, 1, (1,), (3,), (1,), activation="relu"),
            Stage(24, 2, depths, kernels, ratios, activation="relu"),
            Stage(40, 2, depths, kernels, ratios, squeeze_excite=True, activation="relu"),
            Stage(80, 2, depths, kernels, ratios),
            Stage(112, 1, depths, kernels, ratios, squeeze_excite=True),
            Stage(160, 2, depths, kernels, ratios, squeeze_excite=True),
        ),
        resolution=sevenths(image_shape, 4, 5, 6, 7),
        width=(1.0,),
        dropout=0.1,
    )


def _mobilenet_v3_large(image_shape: tuple[int, int, int]) -> MobileNetConfig:
    """Return table 1 of the paper; the ratios 2.5 and 2.3 are expansions 200 and 184 of 80."""
    return MobileNetConfig(
        stages=(
            Stage(16, 1, expand_ratio=(1,), activation="relu"),
            Stage(24, 2, expand_ratio=(4,), activation="relu"),
            Stage(24, 1, expand_ratio=(3,), activation="relu"),
            Stage(40, 2, (1,), (5,), (3,), squeeze_excite=True, activation="relu"),
            Stage(40, 1, (2,), (5,), (3,), squeeze_excite=True, activation="relu"),
            Stage(80, 2),
            Stage(80, 1, expand_ratio=(2.5,)),
            Stage(80, 1, (2,), expand_ratio=(2.3,)),
            Stage(112, 1, (2,), squeeze_excite=True),
            Stage(160, 2, (3,), (5,), (6,), squeeze_excite=True),
        ),
        resolution=sevenths(image_shape, 7),
        dropout=0.2,
    )


def _mobilenet_v3_small(image_shape: tuple[int, int, int]) -> MobileNetConfig:
    """Return table 2 of the paper; its expansions are ratios of the channels before.

    For small images the first strides are 1, so that the last map has 4 pixels a side.
    """
    stem, *strides = _strides(max(image_shape[:2]), 5)
    return MobileNetConfig(
        stages=(
            Stage(16, strides[0], (1,), (3,), (1,), squeeze_excite=True, activation="relu"),
            Stage(24, strides[1], expand_ratio=(4.5,), activation="relu"),  # 72 of 16
            Stage(24, 1, expand_ratio=(3.67,), activation="relu"),  # 88 of 24
            Stage(40, strides[2], (1,), (5,), (4,), squeeze_excite=True),  # 96 of 24
            Stage(40, 1, (2,), (5,), (6,), squeeze_excite=True),
            Stage(48, 1, (2,), (5,), (3,), squeeze_excite=True),  # 120 of 40, 144 of 48
            Stage(96, strides[3], (3,), (5,), (6,), squeeze_excite=True),
        ),
        resolution=sevenths(image_shape, 7),
        stem_stride=stem,
        head_channels=576,
        feature_channels=1024,
        dropout=0.2,
    )


def _strides(side: int, count: int) -> list[int]:
    """Return ``count`` strides of 2; the first ones are 1 if the last map would be too small."""
    halvings = min(count, max(0, math.floor(math.log2(side / _LEAST_MAP))))
    return [1] * (count - halvings) + [2] * halvings


def _ofa(image_shape: tuple[int, int, int]) -> MobileNetConfig:
    """Return once-for-all's MobileNetV3 of width 1.0 (Cai et al., ICLR 2020, section 4.1).

    At 224 pixels the resolutions are the paper's: 128 to 224 in steps of 4.
    """
    side = max(image_shape[:2])
    return dataclasses.replace(
        _large(image_shape),
        resolution=tuple(sorted({max(1, side * part // 56) for part in range(32, 57)})),
        feature_bias=False,
    )


def _fbnet(image_shape: tuple[int, int, int]) -> MobileNetConfig:
    """Return FBNet's 22 layers of nine candidates (Wu et al., CVPR 2019, tables 1 and 2).

    For small images the strides of the stem and the first long stage are 1 and the head has 1504
    channels; this is the space that HELP (Lee et al., NeurIPS 2021) measured at 32 pixels.
    """
    small = max(image_shape[:2]) <= _SMALL_SIDE
    strides = (1, 1 if small else 2, 2, 2, 1, 2, 1)
    channels, layers = (16, 24, 32, 64, 112, 184, 352), (1, 4, 4, 4, 4, 4, 1)
    return MobileNetConfig(
        stages=tuple(
            Stage(width, stride, (depth,), activation="relu", operators=_FBNET)
            for width, stride, depth in zip(channels, strides, layers, strict=True)
        ),
        resolution=sevenths(image_shape, 7),
        stem_channels=16,
        stem_stride=1 if small else 2,
        head_channels=1504 if small else 1984,
        feature_channels=0,
        activation="relu",
    )


def _proxyless(image_shape: tuple[int, int, int]) -> MobileNetConfig:
    """Return ProxylessNAS's space (Cai et al., ICLR 2019) with the channels of its mobile network.

    The paper's layers that may be skipped are depths here, since it makes no difference which of
    several equal layers are skipped.
    """
    depths, kernels, ratios = (1, 2, 3, 4), (3, 5, 7), (3, 6)
    rows = ((32, 2, depths), (40, 2, depths), (80, 2, depths), (96, 1, depths), (192, 2, depths))
    return MobileNetConfig(
        stages=(
            Stage(16, 1, (1,), (3,), (1,), activation="relu6"),
            *(
                Stage(channels, stride, depth, kernels, ratios, activation="relu6")
                for channels, stride, depth in (*rows, (320, 1, (1,)))
            ),
        ),
        resolution=sevenths(image_shape, 7),
        stem_channels=32,
        head_channels=1280,
        feature_channels=0,
        activation="relu6",
    )


PRESETS: Mapping[str, Callable[[tuple[int, int, int]], MobileNetConfig]] = {
    "tiny": _tiny,
    "small": _small,
    "large": _large,
    "mobilenet-v3-large": _mobilenet_v3_large,
    "mobilenet-v3-small": _mobilenet_v3_small,
    "ofa-w1.0": _ofa,
    "fbnet": _fbnet,
    "proxyless": _proxyless,
}
