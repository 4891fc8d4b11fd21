"""Named configurations of hierarchical vision transformers, fitted to a size of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hwnas.search_spaces.hiera.config import HieraConfig
from hwnas.search_spaces.presets import sevenths_of

__all__ = ["PRESETS"]


def _tiny(image_shape: tuple[int, int, int]) -> HieraConfig:
    return HieraConfig(
        depth=((1, 2), (1, 2)),
        width=(16, 24, 32),
        heads=(1, 2),
        mlp_ratio=(1, 2, 4),
        local_stages=(1, 0),
        mask_unit=2,
        patch_size=2,
        resolution=sevenths_of(image_shape, 4, 7),
        head_width=16,
    )


def _small(image_shape: tuple[int, int, int]) -> HieraConfig:
    return HieraConfig(
        depth=((1, 2), (1, 2), (1, 2, 3)),
        width=(32, 48, 64),
        heads=(1, 2),
        mlp_ratio=(2, 3, 4),
        local_stages=(2, 1),
        mask_unit=4,
        patch_size=2,
        resolution=sevenths_of(image_shape, 8, 7),
        head_width=32,
    )


def _large(image_shape: tuple[int, int, int]) -> HieraConfig:
    """Return a space around Hiera-T, for images of about 224 pixels."""
    return HieraConfig(
        depth=((1, 2), (1, 2), (3, 5, 7), (1, 2)),
        width=(48, 64, 80, 96),
        heads=(1, 2),
        mlp_ratio=(2, 3, 4),
        local_stages=(3, 2),
        resolution=sevenths_of(image_shape, 32, 5, 6, 7),
        head_width=48,
    )


def _hiera_tiny(image_shape: tuple[int, int, int]) -> HieraConfig:
    """Return Hiera-T (Ryali et al., ICML 2023, table 4)."""
    return HieraConfig(
        depth=((1,), (2,), (7,), (2,)),
        width=(96,),
        heads=(1,),
        resolution=sevenths_of(image_shape, 32, 7),
        position="table",
    )


PRESETS: Mapping[str, Callable[[tuple[int, int, int]], HieraConfig]] = {
    "tiny": _tiny,
    "small": _small,
    "large": _large,
    "hiera-tiny": _hiera_tiny,
}
