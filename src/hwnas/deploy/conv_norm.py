"""Where a batch normalisation follows a convolution."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

__all__ = ["ConvNormPair", "conv_norm_pairs"]


@dataclass(frozen=True, eq=False)
class ConvNormPair:
    """Two neighbours in a Sequential.

    Attributes:
        parent: The Sequential.
        conv_name: Of the first in it.
        conv: The first.
        norm_name: Of the second in it.
        norm: The second; it has running statistics.
    """

    parent: nn.Sequential
    conv_name: str
    conv: nn.Conv2d
    norm_name: str
    norm: nn.BatchNorm2d


def conv_norm_pairs(network: nn.Module) -> Iterator[ConvNormPair]:
    """All pairs of which it is certain that the second follows the first: those in a Sequential."""
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
