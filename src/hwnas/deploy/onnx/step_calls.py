"""Conversion of network steps to calls of operators in `hwnas.kernels`, by their sizes alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hwnas.search_spaces import OperatorSignature

__all__ = ["StepCall", "call_of_step"]

_BYTES = 4  # per value, as steps count them
_STRIDES = (1, 2)
_DENSE = 1.5  # largest ratio of input channels to channels per window; above it, there are groups


@dataclass(frozen=True)
class StepCall:
    """Operator call, with the shapes of its tensors.

    Attributes:
        operator: Name of the operator.
        shapes: Shapes of its tensors, by argument.
        options: Further arguments.
    """

    operator: str
    shapes: Mapping[str, tuple[int, ...]]
    options: Mapping[str, int] = field(default_factory=dict)


def call_of_step(step: OperatorSignature, batch: int) -> StepCall | None:
    """Return the operator call for a layer, or None if there is no operator for it.

    The sizes follow from the bytes and multiplications of the step, except the sides of a feature
    map, which are assumed to be equal.

    Args:
        step: Step at one image.
        batch: Number of images in the call.
    """
    if not step.macs or min(step.read_bytes, step.written_bytes) < _BYTES:
        return None
    if step.kind == "linear" or (step.kind == "pointwise" and step.stride == 1):
        return _product(step, batch)
    if step.kernel_size % 2 == 0 or step.stride not in _STRIDES:
        return None
    if step.kind == "depthwise":
        return _depthwise(step, batch)
    return _convolution(step, batch) if step.kind in ("conv", "pointwise") else None


def _product(step: OperatorSignature, batch: int) -> StepCall:
    read, written = step.read_bytes // _BYTES, step.written_bytes // _BYTES
    inner, outer = max(1, step.macs // written), max(1, step.macs // read)
    shapes = {"x": (batch, max(1, read // inner), inner), "weight": (inner, outer)}
    return StepCall("pointwise", {**shapes, "bias": (outer,)})


def _depthwise(step: OperatorSignature, batch: int) -> StepCall | None:
    window = step.kernel_size**2
    channels = _channels(step, window)
    if channels is None:
        return None
    shapes = {
        "x": (batch, *_sides(step.read_bytes // _BYTES // channels), channels),
        "weight": (step.kernel_size, step.kernel_size, channels),
        "bias": (channels,),
    }
    return StepCall("depthwise", shapes, {"stride": step.stride})


def _convolution(step: OperatorSignature, batch: int) -> StepCall | None:
    summed = step.macs // (step.written_bytes // _BYTES)
    inner, outer = summed // step.kernel_size**2, _channels(step, summed)
    if not inner or outer is None:
        return None
    pixels = step.written_bytes // _BYTES // outer * step.stride**2
    if step.read_bytes // _BYTES > _DENSE * inner * pixels:
        return None
    shapes = {
        "x": (batch, *_sides(step.read_bytes // _BYTES // inner), inner),
        "weight": (step.kernel_size, step.kernel_size, inner, outer),
        "bias": (outer,),
    }
    return StepCall("convolution", shapes, {"stride": step.stride})


def _channels(step: OperatorSignature, summed: int) -> int | None:
    """Return the output channels, each with ``summed`` weights and perhaps a bias, or None."""
    weights, written = step.weight_bytes // _BYTES, step.written_bytes // _BYTES
    for held in (max(1, summed), summed + 1):
        channels = weights // held
        if channels and weights % held == 0 and written % channels == 0:
            return channels
    return None


def _sides(pixels: int) -> tuple[int, int]:
    """Return the height and width of a feature map that is about square."""
    height = max(1, math.isqrt(pixels))
    return height, max(1, -(-pixels // height))
