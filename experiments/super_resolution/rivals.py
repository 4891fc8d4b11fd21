"""Published and hand-scaled networks for super-resolution, all with an enlarged image added."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from experiments.alone import Alone
from experiments.super_resolution.pictures import SIDE, UPSCALE
from hwnas.search_spaces import SearchSpace, edsr

HAND_SCALED: Mapping[str, Mapping[str, Any]] = {
    "edsr-c16-d2": {"channels": (16,), "depth": (2,), "expand_ratio": (1.0,)},
    "edsr-c32-d5": {"channels": (32,), "depth": (5,), "expand_ratio": (1.0,)},
}


class Anchored(nn.Module):
    """Layers whose output is added to the image, enlarged by repeating its pixels."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, images: Tensor) -> Tensor:
        """Return pictures (N, C, H, W) of images (N, C, h, w)."""
        pictures: Tensor = self.layers(images)
        return pictures + functional.interpolate(images, pictures.shape[2:], mode="nearest")


def espcn() -> nn.Module:
    """Return ESPCN (Shi et al., CVPR 2016, section 3.2) for three channels."""
    return Anchored(
        nn.Sequential(
            nn.Conv2d(3, 64, 5, padding=2),
            nn.Tanh(),
            nn.Conv2d(64, 32, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(32, 3 * UPSCALE**2, 3, padding=1),
            nn.PixelShuffle(UPSCALE),
        )
    )


def fsrcnn(d: int = 56, s: int = 12, m: int = 4) -> nn.Module:
    """Return FSRCNN (Dong et al., ECCV 2016, section 3.3) for three channels."""
    mapping = [part for _ in range(m) for part in (nn.Conv2d(s, s, 3, padding=1), nn.PReLU(s))]
    return Anchored(
        nn.Sequential(
            nn.Conv2d(3, d, 5, padding=2),
            nn.PReLU(d),
            nn.Conv2d(d, s, 1),
            nn.PReLU(s),
            *mapping,
            nn.Conv2d(s, d, 1),
            nn.PReLU(d),
            nn.ConvTranspose2d(d, 3, 9, UPSCALE, 4, UPSCALE - 1),
        )
    )


def rivals() -> list[Alone]:
    """Return all rivals."""
    shape = (3, SIDE, SIDE)
    found = [Alone("espcn", espcn, shape), Alone("fsrcnn", fsrcnn, shape)]
    for name, options in HAND_SCALED.items():
        space = edsr((SIDE, SIDE, 3), 3, upscale=UPSCALE, **options)
        about = dict(options)
        found.append(Alone(name, partial(_only, space), shape, about, traceable=True))
    return found


def _only(space: SearchSpace) -> nn.Module:
    return space.build(space.smallest())
