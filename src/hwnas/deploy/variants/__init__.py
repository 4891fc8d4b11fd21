"""Variants that an exported network can be converted to before it is shipped, by name."""

from hwnas.deploy.variants.catalogue import VARIANTS, Made, Material, Variant

__all__ = ["VARIANTS", "Made", "Material", "Variant"]
