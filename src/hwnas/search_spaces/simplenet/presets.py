"""Named SimpleNet configurations, among them the published networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hwnas.search_spaces.map_sizes import SQUARE, Size
from hwnas.search_spaces.simplenet.config import Group, least_resolution

__all__ = ["PRESETS", "SimpleNetPreset"]


@dataclass(frozen=True)
class SimpleNetPreset:
    """Named configuration for images of any size.

    Attributes:
        groups: Groups, as in `SimpleNetConfig`.
        scales: Options for the input's side, as multiples of the images'.
    """

    groups: tuple[Group, ...]
    scales: tuple[float, ...] = (1,)

    def resolution(self, side: int, aspect: Size = SQUARE) -> tuple[int, ...]:
        """Return options for the input's longer side, each one that the space supports.

        At scale 1 the side is always that of the images.
        """
        least = least_resolution(len(self.groups) - 1, aspect)
        return tuple(sorted({side if s == 1 else max(least, int(side * s)) for s in self.scales}))


# From the authors' files for CIFAR: 5.48 million and 310 thousand weights with 10 classes.
_FULL = ((64, 128, 128, 128), (128, 128, 256), (256, 256), (512, 2048, 256), (256,))
_SLIM = ((64, 32, 32, 32), (32, 32, 64), (64, 64), (128, 256, 64), (64,))
_KERNELS = ((3,), (3,), (3,), (3, 1, 1), (3,))
_DEPTHS = ((2, 3, 4), (1, 2, 3), (1, 2), (3,), (1,))
_WIDTHS = (0.25, 0.5, 0.75, 1)


def _published(channels: Sequence[tuple[int, ...]]) -> SimpleNetPreset:
    """Return a space with a single network, as it is in the paper."""
    return SimpleNetPreset(tuple(Group(*each) for each in zip(channels, _KERNELS, strict=True)))


def _elastic(channels: Sequence[tuple[int, ...]]) -> SimpleNetPreset:
    """Return a space of networks that are at most as wide and as deep as a published one."""
    each = zip(channels, _KERNELS, _DEPTHS, strict=True)
    return SimpleNetPreset(tuple(Group(*sizes, _WIDTHS) for sizes in each), (0.75, 1))


PRESETS: Mapping[str, SimpleNetPreset] = {
    "tiny": SimpleNetPreset(
        (
            Group((16, 24, 24), depth=(2, 3), width=(0.5, 1)),
            Group((32, 32), depth=(1, 2), width=(0.5, 1)),
            Group((48, 96, 32), (3, 1, 1), width=(0.5, 1)),
            Group((32,), width=(0.5, 1)),
        ),
        (1, 2),
    ),
    "slim": _elastic(_SLIM),
    "full": _elastic(_FULL),
    "simplenet-310k": _published(_SLIM),
    "simplenet-5m": _published(_FULL),
}
