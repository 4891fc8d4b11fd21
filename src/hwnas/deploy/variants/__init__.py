"""Variants that an exported network can be converted to before it is shipped, by name."""

from hwnas.deploy.variants.catalogue import VARIANTS, ConvertedNetwork, Variant, VariantInputs

__all__ = ["VARIANTS", "ConvertedNetwork", "Variant", "VariantInputs"]
