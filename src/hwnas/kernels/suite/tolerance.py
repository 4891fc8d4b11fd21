"""Tolerances of outputs of kernels against the exact result: the reference in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["TOLERANCES", "Tolerance", "as_tuple", "exact_outputs", "in_float64", "worst_error"]


@dataclass(frozen=True)
class Tolerance:
    """Tolerance: |output - truth| is at most ``absolute + relative * |truth|``, everywhere."""

    absolute: float
    relative: float


# Four units in the last place for 16-bit types: they are rounded once at the end, and once more
# where a gate is applied. Sums are float32, whose errors grow with their length.
TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float16: Tolerance(2e-3, 2e-3),
    torch.bfloat16: Tolerance(1.6e-2, 1.6e-2),
    torch.float32: Tolerance(2e-5, 2e-5),
    torch.int8: Tolerance(1, 0),
}


def in_float64(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs with each floating tensor in float64; values do not change."""
    return {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def exact_outputs(reference: Callable[..., Any], inputs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Return the outputs of a reference in float64, on the CPU if a GPU lacks such products."""
    exact = in_float64(inputs)
    try:
        return as_tuple(reference(**exact))
    except RuntimeError:
        here = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in exact.items()}
    device = next(iter(inputs.values())).device
    return tuple(part.to(device) for part in as_tuple(reference(**here)))


def as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    """Return one or several outputs of an operator as a tuple."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def worst_error(output: Tensor, truth: Tensor) -> float:
    """Return the largest error as a multiple of the tolerance of the output's type.

    It is at most 1 if the output is within the tolerance. NaN and infinities of the truth must be
    at the same places in the output; otherwise the error is infinite. If the truth exceeds the
    range of the type, the output has to be infinite. If the truth is within the tolerance of the
    type's largest number, the output may be that number or infinite.
    """
    if output.shape != truth.shape:
        return math.inf
    tolerance = TOLERANCES[output.dtype]
    given, truth = output.double(), truth.double()
    finite = truth.isfinite()
    if not torch.allclose(given[~finite], truth[~finite], equal_nan=True):
        return math.inf
    given, truth = given[finite], truth[finite]
    if not len(given):
        return 0.0
    off = (given - truth).abs()
    if output.is_floating_point():
        beyond = torch.finfo(output.dtype).max - given.sign() * truth
        off = torch.where(given.isinf(), beyond.clamp(min=0), off)
    errors = torch.where(
        off == 0, off, off / (tolerance.absolute + tolerance.relative * truth.abs())
    )
    return errors.nan_to_num(nan=math.inf, posinf=math.inf).max().item()
