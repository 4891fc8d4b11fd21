"""Requantisation of sums of int8 products to int8, in the arithmetic of ONNX's QLinearConv.

A real value is ``scale * (step - zero)`` with an int8 step and a zero point. Weights are symmetric,
so their zero point is 0, with a scale for each channel. With sums t in int32, into which the bias
and the zero point of x are folded,

    y = clamp(round(activation(t * multiplier) + residual) + y_zero),

where the multiplier, x_scale * weight_scale / y_scale, is float32, halves are rounded to even, and
all is counted in steps of y.

If a file rounds to int8 between a layer and the operations after it, these operations are a
function of 256 steps. Then a lookup table replaces the activation, whatever operations it stands
for and however often they round,

    y = clamp(round(table[clamp(round(t * multiplier) + table_zero)] + residual) + y_zero),

and the multiplier is x_scale * weight_scale over the scale of the steps that index the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor

from hwnas.errors import KernelError
from hwnas.kernels.operator import Inputs, Operator, Sizes
from hwnas.kernels.primitives.activations import ACTIVATIONS, activate

__all__ = [
    "RequantisingOperator",
    "check_requantisation",
    "example_requantisation",
    "folded",
    "requantise",
    "requantised_arguments",
    "store_requantised",
    "symmetric",
]

# These commute with a change of scale, so they are computed in steps of y.
_SCALE_FREE = ("none", "relu")
_TYPES = {"bias": (torch.int32,)} | dict.fromkeys(("multiplier", "table"), (torch.float32,))


class RequantisingOperator(Operator):
    """Operator from int8 to int8, whose kernels end in `store_requantised`."""

    dtypes = (torch.int8,)

    def types(self, dtype: torch.dtype) -> Mapping[str, tuple[torch.dtype, ...]]:
        """Return int32 for the bias, and float32 for the multiplier and the table."""
        return _TYPES


@triton.jit
def store_requantised(
    total,  # (rows, columns) of int32
    bias,
    multiplier,
    residual,
    table,
    y,
    place,  # (rows, columns), offsets in y and residual
    mask,  # (rows, columns)
    columns,  # (1, columns)
    in_columns,  # (1, columns)
    y_scale,
    y_zero,
    residual_step,  # residual_scale / y_scale
    residual_zero,
    table_zero,
    ACTIVATION: tl.constexpr,
):
    """Add the bias to a block of sums, requantise it and store it.

    ``bias`` and ``multiplier`` point to one value for each column. ``table`` points to 256 values:
    1 KB, which stays in the first-level cache.
    """
    total += tl.load(bias + columns, mask=in_columns, other=0)
    factor = tl.load(multiplier + columns, mask=in_columns, other=0.0)
    steps = total.to(tl.float32) * factor
    if table is not None:
        steps = tl.load(table + (_rounded(steps, table_zero) + 128))
    elif ACTIVATION == "none" or ACTIVATION == "relu":
        steps = activate(steps, ACTIVATION)
    else:
        steps = activate(steps * y_scale, ACTIVATION) * (1.0 / y_scale)
    if residual is not None:
        added = tl.load(residual + place, mask=mask, other=0).to(tl.int32) - residual_zero
        steps += added.to(tl.float32) * residual_step
    tl.store(y + place, _rounded(steps, y_zero).to(tl.int8), mask=mask)


@triton.jit
def _rounded(steps, zero):
    """Return clamp(round(steps) + zero) in int32, from -128 to 127.

    The steps are clamped first. A float to which 1.5 * 2^23 is added has no bits below one: it is
    rounded half to even, and its lowest bits are the integer.
    """
    steps = tl.minimum(tl.maximum(steps, -128.0 - zero), 127.0 - zero) + 12582912.0
    return steps.to(tl.int32, bitcast=True) - 0x4B400000 + zero


def requantise(
    total: Tensor,
    multiplier: Tensor,
    y_scale: float,
    y_zero: int,
    residual: Tensor | None,
    residual_scale: float,
    residual_zero: int,
    activation: str,
    table: Tensor | None = None,
    table_zero: int = 0,
) -> Tensor:
    """Compute the module's formulas in PyTorch.

    Args:
        total: Sums, (..., C), integers that include the bias.
        multiplier: Multiplier, (C,), in whose type all is computed.
        y_scale: Scale of the output.
        y_zero: Zero point of the output.
        residual: Residual, (..., C) in int8.
        residual_scale: Scale of the residual.
        residual_zero: Zero point of the residual.
        activation: Name in `hwnas.kernels.primitives.activations.ACTIVATIONS`.
        table: Lookup table, (256,), from the least step to the largest, instead of an activation.
        table_zero: Zero point of the steps that index the table.

    Returns:
        Output y, (..., C) in int8.
    """
    steps = total.to(multiplier.dtype) * multiplier
    if table is not None:
        # NaN indexes the first value, as in the kernel, whose maximum with NaN is the other number.
        places = (steps.round() + table_zero).nan_to_num(nan=-128.0).clamp(-128, 127) + 128
        steps = table[places.long()]
    elif activation in _SCALE_FREE:
        steps = ACTIVATIONS[activation](steps)
    else:
        steps = ACTIVATIONS[activation](steps * y_scale) / y_scale
    if residual is not None:
        steps = steps + (residual.to(steps.dtype) - residual_zero) * (residual_scale / y_scale)
    return (steps.round() + y_zero).clamp(-128, 127).to(torch.int8)


def symmetric(weight: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Quantise weights symmetrically to int8, with a scale for each channel.

    Args:
        weight: Weight of any floating type, finite.
        axis: Axis of the channels.

    Returns:
        Weight of the same shape in int8, from -127 to 127, and scales (C,) in float32. The error of
        a weight is at most half a scale.
    """
    others = [i for i in range(weight.dim()) if i != axis % weight.dim()]
    largest = weight.detach().float().abs().amax(others, keepdim=True)
    scale = torch.where(largest > 0, largest / 127, 1.0)
    return (weight / scale).round().clamp(-127, 127).to(torch.int8), scale.flatten()


def folded(
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor,
    axis: int,
    x_scale: float,
    x_zero: int,
    y_scale: float,
) -> tuple[Tensor, Tensor]:
    """Fold the zero point of x into a layer's bias, and the scales into one multiplier.

    The sum of (x - x_zero) * weight is the sum of x * weight less a constant for each channel.

    Args:
        weight: Weight in int8.
        weight_scale: Scales of the weight, (C,).
        bias: Bias, (C,) in int32, in steps of x_scale * weight_scale, as QLinearConv takes it.
        axis: Axis of the channels in the weight.
        x_scale: Scale of the layer's input.
        x_zero: Zero point of the layer's input.
        y_scale: Scale of the output.

    Returns:
        ``bias``, (C,) in int32, and ``multiplier``, (C,) in float32, of an int8 operator.
    """
    others = [i for i in range(weight.dim()) if i != axis % weight.dim()]
    constant = weight.sum(others, dtype=torch.int64) * x_zero
    # In ONNX Runtime's order, so that it is rounded in the same way.
    multiplier = x_scale * weight_scale.float() / y_scale
    return (bias - constant).to(torch.int32), multiplier


def check_requantisation(name: str, inputs: Inputs) -> None:
    """Raise if an int8 operator does not take the scales, the zero points or the table.

    Raises:
        KernelError: A scale or a zero point is out of range, or the table has another shape or
            comes with an activation.
    """
    for key in ("y_scale", "residual_scale"):
        if not 0 < inputs[key] < float("inf"):
            raise KernelError(f"{name} takes a {key} above 0; given {inputs[key]}")
    for key in ("x_zero", "y_zero", "residual_zero", "table_zero"):
        if not -128 <= inputs.get(key, 0) <= 127:
            raise KernelError(f"{name} takes a {key} from -128 to 127; given {inputs[key]}")
    table = inputs["table"]
    if table is not None and (table.shape != (256,) or inputs["activation"] != "none"):
        raise KernelError(
            f"{name} takes a table (256,) instead of an activation; given {tuple(table.shape)} and "
            f"{inputs['activation']!r}"
        )


def requantised_arguments(inputs: Inputs) -> dict[str, Any]:
    """Return the arguments of kernels that they pass on to `store_requantised`."""
    names = ("bias", "multiplier", "residual", "table")
    numbers = ("y_scale", "y_zero", "residual_zero", "table_zero")
    step = inputs["residual_scale"] / inputs["y_scale"]
    return {name: inputs[name] for name in (*names, *numbers)} | {"residual_step": step}


def example_requantisation(
    shape: tuple[int, ...], terms: int, sizes: Sizes, generator: Generator, device: torch.device
) -> Inputs:
    """Return random arguments for sums of random products, with most outputs inside int8.

    Args:
        shape: Shape of the output, (..., C).
        terms: Number of products in each sum.
        sizes: Sizes, which say whether there are a residual and a table.
        generator: Random generator.
        device: Device of the tensors.
    """
    channels = shape[-1:]
    spread = 74**2 * terms**0.5  # standard deviation of a sum; 74 is that of uniform int8 values
    added = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
    # So flat that an index off by one, due to rounding, changes the output by at most one step.
    table = 0.4 * ACTIVATIONS["hard_swish"](torch.arange(-128.0, 128.0) / 32) * 32
    return {
        "bias": (torch.randn(channels, generator=generator) * spread).to(device, torch.int32),
        "multiplier": ((0.5 + torch.rand(channels, generator=generator)) * 40 / spread).to(device),
        "y_scale": 0.05,
        "y_zero": -5,
        "residual": added.to(device) if sizes["residual"] else None,
        "residual_scale": 0.02,
        "residual_zero": 3,
        "activation": "none" if sizes["table"] else "hard_swish",
        "table": table.to(device) if sizes["table"] else None,
        "table_zero": 9,
    }
