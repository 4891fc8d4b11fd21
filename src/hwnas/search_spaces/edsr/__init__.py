"""Residual networks without normalisation, for super-resolution and restoration."""

from hwnas.search_spaces.edsr.config import EdsrConfig
from hwnas.search_spaces.edsr.presets import PRESETS
from hwnas.search_spaces.edsr.space import EdsrSpace, edsr

__all__ = ["PRESETS", "EdsrConfig", "EdsrSpace", "edsr"]
