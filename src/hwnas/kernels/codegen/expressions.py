"""Expressions of fused steps that need more than one line, in Triton and in PyTorch.

In Triton each of them takes and returns blocks of float32, (pixels, channels).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

__all__ = [
    "largest",
    "layer_norm_reference",
    "normalized",
    "quantize_reference",
    "quantized",
    "softmaxed",
]


@triton.jit
def softmaxed(v, inside):
    """Return the softmax of each row."""
    v = tl.where(inside, v, -float("inf"))
    v = tl.exp(v - tl.max(v, 1)[:, None])
    return v / tl.sum(v, 1)[:, None]


@triton.jit
def normalized(v, inside, epsilon, CHANNELS: tl.constexpr):
    """Return each row with mean 0 and variance 1."""
    v = v - (tl.sum(tl.where(inside, v, 0.0), 1) / CHANNELS)[:, None]
    variance = tl.sum(tl.where(inside, v * v, 0.0), 1) / CHANNELS
    return v / tl.sqrt(variance + epsilon)[:, None]


def layer_norm_reference(v: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Compute layer normalisation in PyTorch, with weight and bias (C,)."""
    shape = v.shape[-1:]
    return functional.layer_norm(v, shape, weight.to(v.dtype), bias.to(v.dtype), epsilon)


@triton.jit
def quantized(v, scale, zero_point):
    """Return v / scale, rounded half to even, plus zero_point, limited to -128..127.

    NaN becomes the zero point.
    """
    v = v / scale
    v = tl.where(v != v, 0.0, v)
    low, high = -128.0 - zero_point, 127.0 - zero_point
    v = tl.where(v < low, low, tl.where(v > high, high, v))
    # Near 1.5 * 2**23 float32 has no bits left for a fraction: the addition rounds.
    return (v + 12582912.0) - 12582912.0 + zero_point


def quantize_reference(v: Tensor, scale: float, zero_point: float) -> Tensor:
    """Compute the same as `quantized` in PyTorch."""
    steps = torch.nan_to_num(v / scale, nan=0.0, posinf=math.inf, neginf=-math.inf)
    return (steps.round() + zero_point).clamp(-128, 127)


@triton.jit
def largest(total):
    """Return the maximum of each column, (1, columns), or NaN if the column has one."""
    wrong = tl.max((total != total).to(tl.int32), 0)
    most = tl.max(tl.where(total != total, -float("inf"), total), 0)
    return tl.where(wrong > 0, float("nan"), most)[None, :]
