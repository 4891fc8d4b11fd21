"""Linear layers whose weight is a product of two low-rank matrices."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from hwnas.search_spaces.layers.rounding import make_divisible

__all__ = ["LowRankLinear", "projection", "rank_of"]


class LowRankLinear(nn.Sequential):
    """Linear layer W x + b with W = U V of rank r: (..., in) -> (..., out).

    The first rows of V and the first columns of U form a layer of lower rank, so layers of
    different ranks share weights, as in MCUFormer's search over ranks (Liang et al., NeurIPS 2023).

    Args:
        in_features: Length of the input.
        out_features: Length of the output.
        rank: r.
    """

    def __init__(self, in_features: int, out_features: int, rank: int) -> None:
        super().__init__(
            OrderedDict(
                reduce=nn.Linear(in_features, rank, bias=False),
                expand=nn.Linear(rank, out_features),
            )
        )


def projection(in_features: int, out_features: int, rank: float | None) -> nn.Module:
    """Return a linear layer: dense if ``rank`` is None, else of that share of the full rank."""
    if rank is None:
        return nn.Linear(in_features, out_features)
    return LowRankLinear(in_features, out_features, rank_of(in_features, out_features, rank))


def rank_of(in_features: int, out_features: int, share: float) -> int:
    """Return a share of the full rank, rounded to a multiple of 8 for fast kernels.

    The result is at most the full rank.
    """
    full = min(in_features, out_features)
    return min(full, make_divisible(share * full))
