"""Pieces of fused chains, which `hwnas.kernels.codegen.fusion.fuse` combines into one kernel.

As in the Fused Kernel Library (Amoros et al., 2025, arXiv:2508.07071), a user names the steps, and
no intermediate result goes to memory. Steps are C++ templates there; here they are readable lines
of a Triton kernel. A tensor that a piece is not given when it is made is given when the chain is
called.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from hwnas.errors import KernelError
from hwnas.kernels.codegen.expressions import layer_norm_reference, quantize_reference
from hwnas.kernels.codegen.steps import ChainStep, Operand, Reduction
from hwnas.kernels.primitives.activations import ACTIVATIONS, check_activation

__all__ = [
    "BoundStep",
    "activation",
    "add",
    "batch_norm",
    "cast",
    "clamp",
    "dequantize",
    "gelu",
    "hard_sigmoid",
    "hard_swish",
    "layer_norm",
    "multiply",
    "pixel_max",
    "pixel_mean",
    "pixel_sum",
    "quantize",
    "relu",
    "relu6",
    "scale_shift",
    "sigmoid",
    "silu",
    "softmax",
]


@dataclass(frozen=True, eq=False)
class BoundStep:
    """Step with a value for each operand; None for a tensor that is given at the call."""

    step: ChainStep
    values: tuple[Tensor | float | None, ...] = ()


_SCALE_SHIFT = ChainStep(
    "scale_shift",
    "v * {scale} + {shift}",
    lambda v, scale, shift: v * scale + shift,
    (Operand("scale", "channel", 1.0), Operand("shift", "channel")),
)
_CLAMP = ChainStep(
    "clamp",
    "tl.where(v < {low}, {low}, tl.where(v > {high}, {high}, v))",
    torch.clamp,
    (Operand("low", "number", -1.0), Operand("high", "number", 1.0)),
)
_SOFTMAX = ChainStep("softmax", "softmaxed(v, inside)", lambda v: v.softmax(-1), place="rows")
_LAYER_NORM = ChainStep(
    "layer_norm",
    "normalized(v, inside, {epsilon}, CHANNELS) * {weight} + {bias}",
    layer_norm_reference,
    (
        Operand("weight", "channel", 1.0),
        Operand("bias", "channel"),
        Operand("epsilon", "number", 1e-5),
    ),
    "rows",
)
_INTEGERS = (Operand("scale", "number", 0.05), Operand("zero_point", "number", 3.0))
_DEQUANTIZE = ChainStep(
    "dequantize",
    "(v - {zero_point}) * {scale}",
    lambda v, scale, zero_point: (v - zero_point) * scale,
    _INTEGERS,
    "first",
)
_QUANTIZE = ChainStep(
    "quantize",
    "quantized(v, {scale}, {zero_point})",
    quantize_reference,
    _INTEGERS,
    "last",
    gives=torch.int8,
)
_SUM = Reduction("0.0", "total + tl.where(inside, v, 0.0)", "tl.sum(total, 0)[None, :]")
_MAX = Reduction(
    '-float("inf")', "tl.where(inside & ((v > total) | (v != v)), v, total)", "largest(total)"
)
_PIXEL_SUM = ChainStep("pixel_sum", "v", lambda v: _pixels(v).sum(1), (), "reduction", _SUM)
_PIXEL_MEAN = ChainStep(
    "pixel_mean", "v / pixels", lambda v: _pixels(v).mean(1), (), "reduction", _SUM
)
_PIXEL_MAX = ChainStep("pixel_max", "v", lambda v: _pixels(v).amax(1), (), "reduction", _MAX)


def activation(name: str) -> BoundStep:
    """Return a piece that applies one of `hwnas.kernels.primitives.activations.ACTIVATIONS`.

    Raises:
        KernelError: The name is unknown.
    """
    check_activation(name)
    return BoundStep(ChainStep(name, f'activate(v, "{name}")', ACTIVATIONS[name]))


relu = partial(activation, "relu")
relu6 = partial(activation, "relu6")
hard_swish = partial(activation, "hard_swish")
hard_sigmoid = partial(activation, "hard_sigmoid")
sigmoid = partial(activation, "sigmoid")
silu = partial(activation, "silu")
gelu = partial(activation, "gelu")


def scale_shift(scale: Tensor | None = None, shift: Tensor | None = None) -> BoundStep:
    """Return a piece that computes v * scale + shift, with scale and shift (C,)."""
    return BoundStep(_SCALE_SHIFT, (scale, shift))


def batch_norm(layer: _BatchNorm) -> BoundStep:
    """Return a `scale_shift` that normalises by a layer's running statistics as they are now.

    Raises:
        KernelError: The layer keeps no running statistics.
    """
    if layer.running_mean is None or layer.running_var is None:
        raise KernelError(f"{layer} has no running statistics; track them, or use scale_shift")
    scale = (layer.running_var + layer.eps).rsqrt()
    if not layer.affine:
        return scale_shift(scale, -layer.running_mean * scale)
    scale = scale * layer.weight.detach()
    return scale_shift(scale, layer.bias.detach() - layer.running_mean * scale)


def add(other: Tensor | None = None, per: str = "value") -> BoundStep:
    """Return a piece that computes v + other.

    ``per`` says what ``other`` has one number for: each ``value``, each channel of each ``image``,
    or each ``channel``.
    """
    return BoundStep(ChainStep("add", "v + {other}", torch.add, (_other(per, 0.0),)), (other,))


def multiply(other: Tensor | None = None, per: str = "value") -> BoundStep:
    """Return a piece that computes v * other, with ``per`` as for `add`.

    The gate of a squeeze-excite is one per ``image``.
    """
    return BoundStep(ChainStep("multiply", "v * {other}", torch.mul, (_other(per, 1.0),)), (other,))


def clamp(low: float, high: float) -> BoundStep:
    """Return a piece that limits v to low..high; NaN stays NaN."""
    if not low <= high:
        raise KernelError(f"clamp takes a low that is at most high; given {low} and {high}")
    return BoundStep(_CLAMP, (float(low), float(high)))


def softmax() -> BoundStep:
    """Return a piece that computes the softmax of the channels of each pixel."""
    return BoundStep(_SOFTMAX)


def layer_norm(
    weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5
) -> BoundStep:
    """Return a piece that normalises the channels of each pixel, with weight and bias (C,)."""
    return BoundStep(_LAYER_NORM, (weight, bias, float(epsilon)))


def dequantize(scale: float, zero_point: int = 0) -> BoundStep:
    """Return a piece that computes (v - zero_point) * scale of an int8 input."""
    return BoundStep(_DEQUANTIZE, _integers(scale, zero_point))


def quantize(scale: float, zero_point: int = 0) -> BoundStep:
    """Return a piece that computes v / scale + zero_point in int8, limited to -128..127.

    v / scale is rounded to the nearest integer, halves to even. NaN becomes the zero point.
    """
    return BoundStep(_QUANTIZE, _integers(scale, zero_point))


def cast(dtype: torch.dtype) -> BoundStep:
    """Return a piece that stores the result as float16, bfloat16 or float32."""
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise KernelError(f"cast takes float16, bfloat16 or float32, not {dtype}; see quantize")
    return BoundStep(ChainStep("cast", "v", ACTIVATIONS["none"], place="last", gives=dtype))


def pixel_sum() -> BoundStep:
    """Return a piece that sums the pixels of an image for each channel, (N, C)."""
    return BoundStep(_PIXEL_SUM)


def pixel_mean() -> BoundStep:
    """Return a piece that averages the pixels of an image for each channel, (N, C)."""
    return BoundStep(_PIXEL_MEAN)


def pixel_max() -> BoundStep:
    """Return a piece that takes the largest pixel of an image for each channel, (N, C)."""
    return BoundStep(_PIXEL_MAX)


def _pixels(v: Tensor) -> Tensor:
    """Return v with its pixels in one axis, (N, pixels, C)."""
    return v.reshape(len(v), -1, v.shape[-1])


def _other(per: str, typical: float) -> Operand:
    if per not in ("value", "image", "channel"):
        raise KernelError(f"an operand is one per 'value', 'image' or 'channel', not {per!r}")
    return Operand("other", per, typical)


def _integers(scale: float, zero_point: int) -> tuple[float, float]:
    if not (0 < scale < math.inf and -128 <= zero_point <= 127):
        raise KernelError(
            f"scale is {scale} and zero_point {zero_point}; a scale is above 0 and finite, "
            "a zero point is from -128 to 127"
        )
    return float(scale), float(zero_point)
