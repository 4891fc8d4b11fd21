"""Space of vision transformers."""

from hwnas.search_spaces.vit.config import VitConfig
from hwnas.search_spaces.vit.presets import PRESETS
from hwnas.search_spaces.vit.space import VitSpace, vit

__all__ = ["PRESETS", "VitConfig", "VitSpace", "vit"]
