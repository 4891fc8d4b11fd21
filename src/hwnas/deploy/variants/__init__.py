"""Variants that an exported network can be converted to before it is shipped, by name."""

from hwnas.deploy.variants.registry import VARIANTS
from hwnas.deploy.variants.variant import ConvertedNetwork, Variant, VariantInputs

__all__ = ["VARIANTS", "ConvertedNetwork", "Variant", "VariantInputs"]
