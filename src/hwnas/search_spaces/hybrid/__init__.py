"""Space of networks of convolution and attention."""

from hwnas.search_spaces.hybrid.config import HybridConfig, HybridStage
from hwnas.search_spaces.hybrid.presets import PRESETS
from hwnas.search_spaces.hybrid.space import HybridSpace, hybrid

__all__ = ["PRESETS", "HybridConfig", "HybridSpace", "HybridStage", "hybrid"]
