"""Layers and blocks of the networks."""

from hwnas.search_spaces.layers.attention import Attention, FeedForward, PreNorm
from hwnas.search_spaces.layers.bottleneck import (
    BasicBlock,
    Bottleneck,
    FusedBottleneck,
    InvertedBottleneck,
)
from hwnas.search_spaces.layers.conv import (
    Activation,
    ChannelShuffle,
    ConvNormAct,
    SqueezeExcite,
)
from hwnas.search_spaces.layers.conv_attention import Context, ConvAttention
from hwnas.search_spaces.layers.depthwise import DepthwiseConv2d
from hwnas.search_spaces.layers.low_rank import LowRankLinear, projection, rank_of
from hwnas.search_spaces.layers.patches import PatchEmbedding, Position, PositionTable
from hwnas.search_spaces.layers.piecewise_gelu import GeluKind, PiecewiseGelu, check_gelu
from hwnas.search_spaces.layers.rounding import hidden_channels, make_divisible, scaled_channels
from hwnas.search_spaces.layers.token_merging import TokenMerging, tokens_after

__all__ = [
    "Activation",
    "Attention",
    "BasicBlock",
    "Bottleneck",
    "ChannelShuffle",
    "Context",
    "ConvAttention",
    "ConvNormAct",
    "DepthwiseConv2d",
    "FeedForward",
    "FusedBottleneck",
    "GeluKind",
    "InvertedBottleneck",
    "LowRankLinear",
    "PatchEmbedding",
    "PiecewiseGelu",
    "Position",
    "PositionTable",
    "PreNorm",
    "SqueezeExcite",
    "TokenMerging",
    "check_gelu",
    "hidden_channels",
    "make_divisible",
    "projection",
    "rank_of",
    "scaled_channels",
    "tokens_after",
]
