"""Pairs of a convolution and the batch normalisation that follows it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

__all__ = ["ConvNormPair", "conv_norm_pairs"]


@dataclass(frozen=True, eq=False)
class ConvNormPair:
    """Convolution and batch normalisation that are neighbours in a Sequential.

    Attributes:
        parent: Sequential that holds both.
        conv_name: Name of the convolution in it.
        conv: The convolution.
        norm_name: Name of the batch normalisation in it.
        norm: The batch normalisation, which has running statistics.
    """

    parent: nn.Sequential
    conv_name: str
    conv: nn.Conv2d
    norm_name: str
    norm: nn.BatchNorm2d


def conv_norm_pairs(network: nn.Module) -> Iterator[ConvNormPair]:
    """Yield all pairs of a convolution and a batch normalisation next to it in a Sequential.

    Outside a Sequential it is not certain that the normalisation follows the convolution.
    """
    for module in network.modules():
        if (
            not isinstance(module, nn.Sequential)
            or type(module).forward is not nn.Sequential.forward
        ):
            continue
        for (conv_name, conv), (norm_name, norm) in itertools.pairwise(module.named_children()):
            if (
                isinstance(conv, nn.Conv2d)
                and isinstance(norm, nn.BatchNorm2d)
                and norm.track_running_stats
            ):
                yield ConvNormPair(module, conv_name, conv, norm_name, norm)
