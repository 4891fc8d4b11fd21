"""Vision transformers."""

from hwnas.search_spaces.vit.config import PRESETS, VitConfig
from hwnas.search_spaces.vit.space import VitSpace, vit

__all__ = ["PRESETS", "VitConfig", "VitSpace", "vit"]
