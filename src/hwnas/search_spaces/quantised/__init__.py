"""Spaces whose networks also differ in the bit widths of their weights and activations."""

from hwnas.search_spaces.quantised.settings import QuantisationConfig
from hwnas.search_spaces.quantised.space import QuantisedSpace

__all__ = ["QuantisationConfig", "QuantisedSpace"]
