"""Building blocks of the networks."""

from hwnas.search_spaces.layers.bottleneck import Bottleneck
from hwnas.search_spaces.layers.conv import (
    Activation,
    ChannelShuffle,
    ConvNormAct,
    InvertedBottleneck,
    SqueezeExcite,
    make_divisible,
)
from hwnas.search_spaces.layers.depthwise import DepthwiseConv2d

__all__ = [
    "Activation",
    "Bottleneck",
    "ChannelShuffle",
    "ConvNormAct",
    "DepthwiseConv2d",
    "InvertedBottleneck",
    "SqueezeExcite",
    "make_divisible",
]
