"""Space of hierarchical vision transformers."""

from hwnas.search_spaces.hiera.config import HieraConfig
from hwnas.search_spaces.hiera.presets import PRESETS
from hwnas.search_spaces.hiera.space import HieraSpace, hiera

__all__ = ["PRESETS", "HieraConfig", "HieraSpace", "hiera"]
