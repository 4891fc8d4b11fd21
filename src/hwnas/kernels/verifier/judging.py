"""Errors of a kernel's outputs, as multiples of the tolerance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hwnas.kernels.suite.tolerance import TOLERANCES, worst_error
from hwnas.kernels.verifier.calls import CallOutcome
from hwnas.kernels.verifier.plan import VerificationCall
from hwnas.kernels.verifier.process.memory import same_bytes
from hwnas.kernels.verifier.specification import ExpectedOutputs

__all__ = ["Result", "each_error", "error", "extreme_error", "same_outputs", "unseen_bits"]

_LIKE_OWN = 2.0  # allowed multiple of PyTorch's own error, if that exceeds the tolerance
_LIKE_PYTORCH = 4.0  # allowed multiple of PyTorch's own error for extreme values


@dataclass(frozen=True)
class Result:
    """Call of a kernel, with its outcome and the expected outputs.

    Attributes:
        trial: Call and its purpose.
        outcome: Outcome that the kernel's process reported.
        truth: Expected outputs.
    """

    trial: VerificationCall
    outcome: CallOutcome
    truth: ExpectedOutputs


def error(result: Result) -> float:
    """Return the worst error as a multiple of the tolerance, infinite if incomparable."""
    outputs, truth = result.outcome.outputs, result.truth
    if result.outcome.error is not None or len(outputs) != len(truth.exact):
        return math.inf
    return max(
        _error(output, exact, dtype) / _own_error(place, truth)
        for place, (output, exact, dtype) in enumerate(
            zip(outputs, truth.exact, truth.dtypes, strict=True)
        )
    )


def _own_error(place: int, truth: ExpectedOutputs) -> float:
    """Return the factor on the tolerance, above 1 if PyTorch's own float32 error exceeds it.

    That happens where values cancel, as in the normalisation of two values that nearly agree.
    """
    exact, dtype = truth.exact[place], truth.dtypes[place]
    if dtype != torch.float32 or len(truth.plain) != len(truth.exact):
        return 1.0
    theirs = _error(truth.plain[place], exact, dtype)
    return max(1.0, _LIKE_OWN * theirs) if math.isfinite(theirs) and theirs > 1 else 1.0


def each_error(result: Result) -> float:
    """Return the worst error of several calls with the same inputs, as `error` does for one.

    Each output has the shape (calls, ...). PyTorch's own error does not raise the tolerance.
    """
    outputs, truth = result.outcome.outputs, result.truth
    if result.outcome.error is not None or len(outputs) != len(truth.exact):
        return math.inf
    return max(
        _error(output, exact.expand(len(output), *exact.shape), dtype)
        if output.dim() == exact.dim() + 1
        else math.inf
        for output, exact, dtype in zip(outputs, truth.exact, truth.dtypes, strict=True)
    )


def _error(output: Tensor, exact: Tensor, dtype: torch.dtype) -> float:
    if output.shape != exact.shape:
        return math.inf
    if dtype in TOLERANCES:
        return worst_error(output.to(dtype), exact)
    return 0.0 if torch.equal(output.double(), exact.double()) else math.inf


def extreme_error(result: Result) -> float:
    """Return the worst error as `error` does, for very large, very small and non-finite values.

    The tolerance grows with the outputs, since large sums that cancel leave an inexact remainder,
    and with PyTorch's own error in this type. A non-finite output has to agree with the exact one,
    or with PyTorch's.
    """
    outputs, truth = result.outcome.outputs, result.truth
    if result.outcome.error is not None or len(outputs) != len(truth.exact):
        return math.inf
    plain = truth.plain or truth.exact
    return max(
        _extreme_error(output.to(dtype), exact, like.to(dtype))
        if output.shape == exact.shape and dtype in TOLERANCES
        else _error(output, exact, dtype)
        for output, exact, like, dtype in zip(
            outputs, truth.exact, plain, truth.dtypes, strict=True
        )
    )


def _extreme_error(output: Tensor, exact: Tensor, plain: Tensor) -> float:
    tolerance = TOLERANCES[output.dtype]
    given, exact, plain = output.double(), exact.double(), plain.double()
    rounded = exact.to(output.dtype).double()
    right = _same_special(given, rounded) | _same_special(given, plain)
    if output.is_floating_point():  # a value near the largest number may be rounded to infinity
        edge = exact.abs() > 0.99 * torch.finfo(output.dtype).max
        right |= edge & (given.abs() >= 0.99 * torch.finfo(output.dtype).max)
        right &= ~(edge & (given.sign() != exact.sign()))
    finite = given.isfinite() & exact.isfinite() & rounded.isfinite()
    if not bool((right | finite).all()):
        return math.inf
    if not finite.any():
        return 0.0
    size = exact[finite].square().mean().sqrt().clamp(1, 1e300)
    allowed = (tolerance.absolute * size + tolerance.relative * exact.abs())[finite]
    errors = (given - exact).abs()[finite] / allowed
    theirs = ((plain - exact).abs()[finite] / allowed).nan_to_num(0, 0, 0).max().item()
    return errors.max().item() / max(1.0, _LIKE_PYTORCH * theirs)


def _same_special(one: Tensor, other: Tensor) -> Tensor:
    """Return where both values are the same infinity, or both are NaN."""
    return (one.isnan() & other.isnan()) | (one.isinf() & (one == other))


def same_outputs(one: CallOutcome, other: CallOutcome) -> bool:
    """Return whether outputs are the same, bit by bit."""
    return len(one.outputs) == len(other.outputs) and all(
        a.shape == b.shape and a.dtype == b.dtype and same_bytes(a, b)
        for a, b in zip(one.outputs, other.outputs, strict=True)
    )


def unseen_bits(coarse: Result, fine: Result) -> float:
    """Return how wrong the change is that low bits of an input cause in the outputs.

    Only changes above three times the tolerance are compared.

    Returns:
        Worst error of a change, as a multiple of the tolerance of two outputs.
    """
    if max(error(coarse), error(fine)) == math.inf:
        return math.inf
    worst = 0.0
    pairs = zip(coarse.outcome.outputs, fine.outcome.outputs, strict=True)
    exact = zip(coarse.truth.exact, fine.truth.exact, strict=True)
    for (before, after), (then, now) in zip(pairs, exact, strict=True):
        if after.dtype not in TOLERANCES:
            continue
        tolerance = TOLERANCES[after.dtype]
        allowed = tolerance.absolute + tolerance.relative * now.abs()
        right = (now - then).double()
        certain = right.abs() > 3 * allowed
        wrong = ((after.double() - before.double()) - right).abs() / (2 * allowed)
        worst = max(worst, wrong[certain].max().item() if certain.any() else 0.0)
    return worst
