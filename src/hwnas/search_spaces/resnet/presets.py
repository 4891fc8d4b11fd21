"""Named ResNet configurations, fitted to a size of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwnas.search_spaces.resnet.config import ResNetConfig, ResNetStage

__all__ = ["PRESETS", "ResNetPreset"]


@dataclass(frozen=True)
class ResNetPreset:
    """Configuration for images of any size.

    Attributes:
        config: Configuration without what follows from the images.
        fourteenths: Options for the resolution, in fourteenths of the longer side of the images.
        least_map: Least side, in pixels, of the first convolution's output: its stride is the
            largest that leaves so much. 0 keeps the stride of the configuration.
    """

    config: ResNetConfig
    fourteenths: tuple[int, ...]
    least_map: int = 0

    def stem(self, side: int) -> tuple[int, int]:
        """Return kernel size and stride of the first convolution for images of a longer side."""
        if not self.least_map:
            return self.config.stem_kernel_size, self.config.stem_stride
        stride = max((s for s in (1, 2, 4) if side // s >= self.least_map), default=1)
        return (3 if stride == 1 else stride + 1), stride

    def resolution(self, side: int) -> tuple[int, ...]:
        """Return options for the resolution, for images of a longer side in pixels."""
        return tuple(sorted({max(1, side * part // 14) for part in self.fourteenths}))


_TINY = ResNetConfig(
    stages=(
        ResNetStage(64, 1, (1, 2), (0.25, 0.5)),
        ResNetStage(96, 2, (1, 2), (0.25, 0.5)),
        ResNetStage(128, 2, (1, 2), (0.25, 0.5)),
    ),
    width=(0.5, 1.0),
    stem_channels=16,
    stem_kernel_size=3,
    stem_stride=1,
    stem_pool=False,
)
_SMALL = ResNetConfig(
    stages=(
        ResNetStage(128, 1, (1, 2, 3), (0.125, 0.25)),
        ResNetStage(256, 2, (1, 2, 3, 4), (0.125, 0.25)),
        ResNetStage(512, 2, (1, 2, 3), (0.125, 0.25)),
    ),
    width=(0.5, 0.75, 1.0),
    stem_channels=32,
    stem_kernel_size=3,
    stem_stride=1,
    stem_pool=False,
)
# Up to ResNet-50 (He et al., CVPR 2016, table 1), which is the largest network. Depths, widths and
# expansions have as many options as in once-for-all's ResNet-50 (and so in Intel's DyNAS-T), which
# goes beyond the published network in depth and expansion.
_RESNET_50 = ResNetConfig(
    stages=(
        ResNetStage(256, 1, (1, 2, 3), (0.15, 0.2, 0.25)),
        ResNetStage(512, 2, (2, 3, 4), (0.15, 0.2, 0.25)),
        ResNetStage(1024, 2, (4, 5, 6), (0.15, 0.2, 0.25)),
        ResNetStage(2048, 2, (1, 2, 3), (0.15, 0.2, 0.25)),
    ),
    width=(0.65, 0.8, 1.0),
)

# Dense convolutions on small maps, which CPUs compute at more multiply-accumulates a second than
# depthwise ones, with channels in multiples of 16, which ONNX Runtime's kernels take at a time. At
# 112 pixels 2 to 100 million multiply-accumulates.
_COMPACT = ResNetConfig(
    stages=(
        ResNetStage(32, 2, (1, 2), (1.0,), "basic"),
        ResNetStage(64, 2, (1, 2), (1.0,), "basic"),
        ResNetStage(128, 2, (1, 2), (1.0,), "basic"),
    ),
    width=(0.5, 1.0, 1.5, 2.0),
    stem_channels=32,
    stem_kernel_size=3,
    stem_stride=1,
    stem_pool=False,
)

# Dense convolutions on large maps, depthwise ones on small maps with many channels, for longer
# trainings. At 112 pixels 3 to 90 million multiply-accumulates.
_MIXED = ResNetConfig(
    stages=(
        ResNetStage(32, 2, (1, 2), (1.0,), "fused"),
        ResNetStage(48, 2, (1, 2), (1.0, 2.0), "fused"),
        ResNetStage(64, 2, (1, 2, 3), (2.0, 3.0), "inverted"),
        ResNetStage(128, 2, (1, 2, 3), (2.0, 3.0), "inverted"),
    ),
    width=(0.5, 1.0, 1.5),
    stem_channels=16,
    stem_kernel_size=3,
    stem_stride=1,
    stem_pool=False,
)

# Inverted bottlenecks on few, small maps, for low latencies. At 32 pixels 0.5 to 10 million
# multiply-accumulates.
_INVERTED = ResNetConfig(
    stages=(
        ResNetStage(32, 2, (1, 2), (3.0,), "inverted"),
        ResNetStage(64, 2, (2, 3), (3.0,), "inverted"),
    ),
    width=(0.5, 1.0, 1.5, 2.0),
    stem_channels=16,
    stem_kernel_size=3,
    stem_stride=1,
    stem_pool=False,
)

PRESETS: Mapping[str, ResNetPreset] = {
    "tiny": ResNetPreset(_TINY, (14, 21, 28)),
    "small": ResNetPreset(_SMALL, (10, 12, 14)),
    "inverted": ResNetPreset(_INVERTED, (10, 12, 14), least_map=12),
    "compact": ResNetPreset(_COMPACT, (10, 12, 14), least_map=24),
    "mixed": ResNetPreset(_MIXED, (10, 12, 14), least_map=48),
    "resnet-50": ResNetPreset(_RESNET_50, (8, 10, 12, 14)),
}
