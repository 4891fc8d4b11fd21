"""Named configurations of decoder language models."""

from __future__ import annotations

from collections.abc import Mapping

from hwnas.search_spaces.decoder.config import DecoderConfig

__all__ = ["PRESETS"]

PRESETS: Mapping[str, DecoderConfig] = {
    # Up to 0.1 million parameters.
    "tiny": DecoderConfig((1, 2), (16, 32), (1, 2), (1, 2), 16),
    # Up to 3 million parameters, for minutes of training on a CPU.
    "small": DecoderConfig((2, 3, 4, 5, 6), (64, 96, 128, 192), (2, 3, 4), (2, 3, 4), 48),
    # Elastic as HW-GPT-Bench's space (Sukthanker et al., NeurIPS 2024), up to GPT-2's size.
    "base": DecoderConfig((10, 11, 12), (192, 384, 768), (4, 8, 12), (2, 3, 4), 64),
}
