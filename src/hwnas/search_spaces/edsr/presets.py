"""Named EDSR configurations."""

from __future__ import annotations

from collections.abc import Mapping

from hwnas.search_spaces.edsr.config import EdsrConfig

__all__ = ["PRESETS"]

PRESETS: Mapping[str, EdsrConfig] = {
    # At 8 pixels and an upscaling of 2, 0.1 to 1 million multiply-accumulates.
    "tiny": EdsrConfig((8, 16), (1, 2)),
    # For CPUs: up to 64 thousand multiply-accumulates for each pixel of the image.
    "small": EdsrConfig((8, 16, 24, 32), (1, 2, 3, 4, 5), (1.0, 2.0)),
    "mixed": EdsrConfig((16, 24, 32), (2, 3, 4, 5), (1.0, 2.0), ("separable", "fused", "dense")),
    # Up to the baseline of EDSR: 16 blocks of 64 channels (Lim et al., CVPRW 2017, table 1).
    "baseline": EdsrConfig((32, 48, 64), (4, 8, 12, 16), (0.5, 1.0)),
}
