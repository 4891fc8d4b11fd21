"""Conversions of our operators' tensors to the layouts of PyTorch's convolutions."""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor

__all__ = ["depthwise_filters", "filters", "nchw", "nhwc", "one_by_one", "square"]


def nchw(x: Tensor) -> Tensor:
    """View a map (N, H, W, C) as (N, C, H, W) in ``channels_last``, without a copy."""
    return x.permute(0, 3, 1, 2)


def nhwc(y: Tensor) -> Tensor:
    """Invert `nchw`."""
    return y.permute(0, 2, 3, 1)


def square(x: Tensor) -> Tensor:
    """View pixels (N, P, C) as a map (N, C, H, W): square, or one line if P is not a square."""
    side = isqrt(x.shape[1])
    shape = (side, side) if side**2 == x.shape[1] else (x.shape[1], 1)
    return nchw(x.unflatten(1, shape))


def one_by_one(weight: Tensor) -> Tensor:
    """Return the filters (C, K, 1, 1) of a pointwise weight (K, C)."""
    return weight.T[:, :, None, None].contiguous(memory_format=torch.channels_last)


def depthwise_filters(weight: Tensor) -> Tensor:
    """Return the filters (C, 1, k, k) of a depthwise weight (k, k, C)."""
    laid_out = weight.permute(2, 0, 1).unsqueeze(1)
    return laid_out.contiguous(memory_format=torch.channels_last)


def filters(weight: Tensor) -> Tensor:
    """Return the filters (O, C, k, k) of a weight (k, k, C, O)."""
    return weight.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
