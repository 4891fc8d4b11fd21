"""From sums of int8 products back to int8, in the arithmetic of ONNX's QLinearConv.

A value is ``scale * (step - zero)`` with an int8 step. Weights are symmetric, so that their zero is
0, with a scale for each channel. With sums t in int32, bias and zero point of x folded in,

    y = clamp(round(activation(t * multiplier) + residual) + y_zero),

where the multiplier, x_scale * weight_scale / y_scale, is float32, halves are rounded to even, and
all is counted in steps of y.

Where a file rounds to int8 between a layer and what follows it, that is a function of 256 steps.
Then a table takes the place of the activation, whatever it stands for and however often values are
rounded in it,

    y = clamp(round(table[clamp(round(t * multiplier) + table_zero)] + residual) + y_zero),

and the multiplier is x_scale * weight_scale over the scale of the steps that the table is read by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor

from hwnas.errors import KernelError
from hwnas.kernels.activations import ACTIVATIONS, activate
from hwnas.kernels.operator import Inputs, Operator, Sizes

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

# Without a unit these commute with a change of scale, so they need not leave the steps of y.
_SCALE_FREE = ("none", "relu")
_TYPES = {"bias": (torch.int32,)} | dict.fromkeys(("multiplier", "table"), (torch.float32,))


class RequantisingOperator(Operator):
    """An operator from int8 to int8, whose kernels end in `store_requantised`."""

    dtypes = (torch.int8,)

    def types(self, dtype: torch.dtype) -> Mapping[str, tuple[torch.dtype, ...]]:
        """Sums are int32, and what is multiplied by float32."""
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
    """Finish a block of sums; bias and multiplier are pointers to a value for each column.

    The table is one to 256 values: 1 KB, which stays in the first-level cache.
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
    """Clamp(round(steps) + zero) in int32, from -128 to 127.

    Clamped first, a float to which 1.5 * 2^23 is added has no bits below one: it is rounded half to
    even, and its lowest bits are the integer.
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
    """The formulas above in PyTorch.

    Args:
        total: (..., C), whole numbers, with the bias.
        multiplier: (C,), in whose type it is computed.
        y_scale: Of the outcome.
        y_zero: Of the outcome.
        residual: (..., C) in int8.
        residual_scale: Of the residual.
        residual_zero: Of the residual.
        activation: One of `hwnas.kernels.activations.ACTIVATIONS`.
        table: (256,), instead of an activation, from the least step to the largest.
        table_zero: Of the steps that the table is read by.

    Returns:
        (..., C) in int8.
    """
    steps = total.to(multiplier.dtype) * multiplier
    if table is not None:
        # What is no number is as in the kernel, which takes the larger number: no place elsewhere.
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
    """Weights in int8 with a scale for each channel.

    Args:
        weight: Of any floating type, finite.
        axis: That of the channels.

    Returns:
        The same shape in int8, from -127 to 127, and scales (C,) in float32. No weight is wrong by
        more than half a scale.
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
    """What an int8 operator takes for the bias of a layer and the scales round it.

    The sum of (x - x_zero) * weight is the sum of x * weight less a constant for each channel.

    Args:
        weight: In int8.
        weight_scale: (C,).
        bias: (C,) in int32, in steps of x_scale * weight_scale, as QLinearConv takes it.
        axis: That of the channels in weight.
        x_scale: Of what the layer is given.
        x_zero: Of what the layer is given.
        y_scale: Of the outcome.

    Returns:
        ``bias`` (C,) in int32 and ``multiplier`` (C,) in float32.
    """
    others = [i for i in range(weight.dim()) if i != axis % weight.dim()]
    constant = weight.sum(others, dtype=torch.int64) * x_zero
    # In ONNX Runtime's order, so that it is rounded alike.
    multiplier = x_scale * weight_scale.float() / y_scale
    return (bias - constant).to(torch.int32), multiplier


def check_requantisation(name: str, inputs: Inputs) -> None:
    """Whether scales and zero points of an int8 operator are what it takes.

    Raises:
        KernelError: They are not.
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
    """What kernels pass on to `store_requantised`."""
    names = ("bias", "multiplier", "residual", "table")
    numbers = ("y_scale", "y_zero", "residual_zero", "table_zero")
    step = inputs["residual_scale"] / inputs["y_scale"]
    return {name: inputs[name] for name in (*names, *numbers)} | {"residual_step": step}


def example_requantisation(
    shape: tuple[int, ...], terms: int, sizes: Sizes, generator: Generator, device: torch.device
) -> Inputs:
    """Random ones for sums of random products, such that most outputs lie inside of int8.

    Args:
        shape: (..., C), of the outcome.
        terms: Of each sum.
        sizes: Whether there is a residual, and whether there is a table.
        generator: Where they come from.
        device: Where they go.
    """
    channels = shape[-1:]
    spread = 74**2 * terms**0.5  # standard deviation of a sum; 74 is that of all of int8
    added = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
    # So flat that a step more or less, as rounding decides, is none that the outcome shows twice.
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
