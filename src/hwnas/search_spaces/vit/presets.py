"""Named configurations of vision transformers, fitted to a size of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hwnas.search_spaces.presets import sevenths_of
from hwnas.search_spaces.vit.config import VitConfig

__all__ = ["PRESETS"]


def _tiny(image_shape: tuple[int, int, int]) -> VitConfig:
    return VitConfig(
        depth=(1, 2, 3, 4),
        width=(32, 48, 64),
        heads=(1, 2, 4),
        mlp_ratio=(1, 2, 4),
        patch_size=(4, 2),
        resolution=sevenths_of(image_shape, 4, 7),
        head_width=16,
    )


def _small(image_shape: tuple[int, int, int]) -> VitConfig:
    return VitConfig(
        depth=(2, 3, 4, 5, 6),
        width=(64, 96, 128),
        heads=(2, 3, 4),
        mlp_ratio=(2, 3, 4),
        patch_size=(8, 4),
        resolution=sevenths_of(image_shape, 8, 7),
        head_width=32,
    )


def _large(image_shape: tuple[int, int, int]) -> VitConfig:
    """Return AutoFormer-tiny's choices (Chen et al., ICCV 2021, table 2) and two more.

    The resolution and the patch size are also elastic. In the paper the number of heads follows
    from a query, key and value dimension of 192 or 256; here the dimension follows from 3 or 4
    heads of 64 channels.
    """
    return VitConfig(
        depth=(12, 13, 14),
        width=(192, 216, 240),
        heads=(3, 4),
        mlp_ratio=(3.5, 4),
        patch_size=(32, 16),
        resolution=sevenths_of(image_shape, 32, 5, 6, 7),
        head_width=64,
    )


def _low_rank(image_shape: tuple[int, int, int]) -> VitConfig:
    """Return a space for microcontrollers and small images, elastic as that of MCUFormer."""
    return VitConfig(
        depth=(2, 3, 4),
        width=(48, 64, 96),
        heads=(2, 3),
        mlp_ratio=(2, 4),
        rank=(0.2, 0.4, 0.6),
        patch_size=(8, 4),
        resolution=sevenths_of(image_shape, 8, 7),
        head_width=32,
    )


def _mcuformer(image_shape: tuple[int, int, int]) -> VitConfig:
    """Return the choices of MCUFormer (Liang et al., NeurIPS 2023), with the authors' options.

    They are AutoFormer-tiny's depths, widths and numbers of heads, with the ranks and patch sizes
    that the authors add. Here, ranks are elastic in each block. Images are rounded to whole
    patches, where theirs lose the pixels that do not fill one.
    """
    return VitConfig(
        depth=(12, 13, 14),
        width=(168, 192, 216),
        heads=(3, 4),
        mlp_ratio=(3.5, 4),
        rank=(0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        patch_size=(32, 28, 24, 20, 16),
        resolution=sevenths_of(image_shape, 32, 5, 6, 7),
        head_width=64,
    )


def _deit_tiny(image_shape: tuple[int, int, int]) -> VitConfig:
    """Return DeiT-Ti (Touvron et al., ICML 2021), with the mean of tokens, not a class token."""
    return VitConfig(
        depth=(12,),
        width=(192,),
        heads=(3,),
        resolution=sevenths_of(image_shape, 16, 7),
        position="table",
    )


PRESETS: Mapping[str, Callable[[tuple[int, int, int]], VitConfig]] = {
    "tiny": _tiny,
    "small": _small,
    "low-rank": _low_rank,
    "mcuformer": _mcuformer,
    "large": _large,
    "deit-tiny": _deit_tiny,
}
