"""Networks of convolution and attention."""

from hwnas.search_spaces.hybrid.config import PRESETS, HybridConfig, HybridStage
from hwnas.search_spaces.hybrid.space import HybridSpace, hybrid

__all__ = ["PRESETS", "HybridConfig", "HybridSpace", "HybridStage", "hybrid"]
