"""Building blocks of the networks."""

from hwnas.search_spaces.layers.conv import (
    Activation,
    ConvNormAct,
    InvertedBottleneck,
    SqueezeExcite,
    make_divisible,
)

__all__ = ["Activation", "ConvNormAct", "InvertedBottleneck", "SqueezeExcite", "make_divisible"]
