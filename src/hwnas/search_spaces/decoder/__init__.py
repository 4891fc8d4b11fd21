"""Space of decoder language models."""

from hwnas.search_spaces.decoder.config import DecoderConfig
from hwnas.search_spaces.decoder.presets import PRESETS
from hwnas.search_spaces.decoder.space import DecoderSpace, decoder

__all__ = ["PRESETS", "DecoderConfig", "DecoderSpace", "decoder"]
