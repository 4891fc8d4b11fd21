"""Space of SimpleNets, which consist of convolutions and max pooling."""

from hwnas.search_spaces.simplenet.config import Group, SimpleNetConfig
from hwnas.search_spaces.simplenet.presets import PRESETS
from hwnas.search_spaces.simplenet.space import SimpleNetSpace, simplenet

__all__ = ["PRESETS", "Group", "SimpleNetConfig", "SimpleNetSpace", "simplenet"]
