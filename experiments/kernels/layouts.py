"""Tensors of our operators as PyTorch's convolutions take them: the same memory, other names."""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor

__all__ = ["depthwise_filters", "filters", "nchw", "nhwc", "one_by_one", "square"]


def nchw(x: Tensor) -> Tensor:
    """(N, C, H, W) in ``channels_last`` of (N, H, W, C); nothing is moved."""
    return x.permute(0, 3, 1, 2)


def nhwc(y: Tensor) -> Tensor:
    """The inverse of `nchw`."""
    return y.permute(0, 2, 3, 1)


def square(x: Tensor) -> Tensor:
    """A map (N, C, H, W) of pixels (N, P, C): square, or one line if P is no square."""
    side = isqrt(x.shape[1])
    shape = (side, side) if side**2 == x.shape[1] else (x.shape[1], 1)
    return nchw(x.unflatten(1, shape))


def one_by_one(weight: Tensor) -> Tensor:
    """Filters (C, K, 1, 1) of a pointwise weight (K, C)."""
    return weight.T[:, :, None, None].contiguous(memory_format=torch.channels_last)


def depthwise_filters(weight: Tensor) -> Tensor:
    """Filters (C, 1, k, k) of a depthwise weight (k, k, C)."""
    laid_out = weight.permute(2, 0, 1).unsqueeze(1)
    return laid_out.contiguous(memory_format=torch.channels_last)


def filters(weight: Tensor) -> Tensor:
    """Filters (O, C, k, k) of a weight (k, k, C, O)."""
    return weight.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
