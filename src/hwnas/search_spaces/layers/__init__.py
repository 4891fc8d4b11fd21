"""Building blocks of the networks."""

from hwnas.search_spaces.layers.conv import (
    Activation,
    ConvNormAct,
    InvertedBottleneck,
    SqueezeExcite,
    make_divisible,
)
from hwnas.search_spaces.layers.depthwise import DepthwiseConv2d

__all__ = [
    "Activation",
    "ConvNormAct",
    "DepthwiseConv2d",
    "InvertedBottleneck",
    "SqueezeExcite",
    "make_divisible",
]
