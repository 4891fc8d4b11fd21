"""Modules that round weights and activations to few bits and prune weights to a sparsity structure.

A quantiser of N levels spaces them evenly, with the step that is optimal for a normal distribution
(Max, "Quantizing for minimum distortion", IRE Transactions on Information Theory 1960, table II) of
the tensor's own standard deviation, but no wider than the tensor's range needs. The step follows
from the tensor, so it needs no parameter that the networks of a supernet would have to share.
Gradients pass straight through the rounding (Bengio et al., 2013). Tensors of one bit are signs
(`hwnas.search_spaces.layers.binarisers`).

Of the weights, those with the largest absolute values stay. The others count as zero, but get the
gradients of dense weights, so that they may return (Zhou et al., "Learning N:M fine-grained
structured sparse neural networks from scratch", ICLR 2021, figure 2a, without the further term of
SR-STE, which weakens pruned weights).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.search_spaces.layers.binarisers import Binarisation, binary_inputs, binary_weights
from hwnas.search_spaces.layers.sparsity_structure import Structure, matrix_of, weight_of

__all__ = [
    "FLOAT_BITS",
    "ONE_BIT",
    "ActivationQuantiser",
    "Granularity",
    "LayerPrecision",
    "Symmetry",
    "WeightQuantiser",
    "normal_step",
    "quantisation_noise",
]

FLOAT_BITS = 32
"""Bit width that stands for single precision, which is not rounded."""
ONE_BIT = 1
"""Bit width of signs."""
Granularity = Literal["tensor", "channel"]
Symmetry = Literal["symmetric", "asymmetric"]
_LEAST_STEP = 1e-8
_WHOLE_BITS = 8  # of a byte; runtimes multiply signed ones, with no room for a zero point
_noise = ContextVar("noise", default=False)


@contextmanager
def quantisation_noise(enabled: bool = True) -> Iterator[None]:
    """Let quantisers add noise within this context, in place of rounding.

    The noise is uniform, as wide as a step of the number format, so that its variance is that of
    the error of rounding, and all gradients are exact (QuantNAS, Shvetsov et al., IEEE Access 2024,
    section III). Values beyond the range are still clipped. Tensors of one bit stay signs.

    Args:
        enabled: Whether to do so.
    """
    token = _noise.set(enabled)
    try:
        yield
    finally:
        _noise.reset(token)


@dataclass(frozen=True)
class LayerPrecision:
    """Number format of a layer, and which of its weights are zero.

    Attributes:
        weight_bits: Bits of a weight, 1 to 8, or 32 for single precision.
        activation_bits: Bits of an element of the layer's input, likewise.
        granularity: ``"channel"`` if the weights have a scale for each output channel, ``"tensor"``
            if they have one for all.
        symmetry: ``"symmetric"`` if the integers of the weights are from -n to n, as those of 8
            bits and of 1 bit always are, and ``"asymmetric"`` if they have a zero point.
        binarisation: Method for tensors of one bit.
        structure: Structure of the zeros among the weights, of a fixed density; weights whose shape
            it does not fit stay as they are. None for no zeros.
    """

    weight_bits: int = FLOAT_BITS
    activation_bits: int = FLOAT_BITS
    granularity: Granularity = "channel"
    symmetry: Symmetry = "symmetric"
    binarisation: Binarisation = "xnor"
    structure: Structure | None = None

    def density(self, shape: Sequence[int]) -> float:
        """Return the share of weights of a shape (C_out, C_in, ...) that are stored."""
        if self.structure is None or not self.structure.fits_weight(shape):
            return 1.0
        return self.structure.density(None)

    def stored_bits(self, shape: Sequence[int]) -> int:
        """Return the bits of weights of a shape, without zeros but with the positions of others."""
        weights, density = prod(shape), self.density(shape)
        if self.structure is None or density == 1:
            return weights * self.weight_bits
        kept = round(density * weights)
        return kept * self.weight_bits + round(self.structure.place_bits(weights, kept))

    @property
    def has_thresholds(self) -> bool:
        """True if the inputs are signs with a learned threshold for each channel."""
        return self.activation_bits == ONE_BIT and self.binarisation == "react"


@lru_cache(maxsize=64)
def normal_step(levels: int) -> float:
    """Return the step of the best uniform quantiser of a standard normal variable.

    Args:
        levels: Number of levels, at least 2, placed evenly around zero.

    Returns:
        The step with the least mean squared error, such as 1.224 for 3 levels.
    """
    from scipy import optimize, stats

    def error(step: float) -> float:
        values = step * (np.arange(levels) - (levels - 1) / 2)
        edges = np.concatenate([[-np.inf], (values[1:] + values[:-1]) / 2, [np.inf]])
        density = stats.norm.pdf(edges)
        share = np.diff(stats.norm.cdf(edges))
        mean = -np.diff(density)  # of x within each cell
        return float(1 + (values**2 * share - 2 * values * mean).sum())

    return float(optimize.minimize_scalar(error, bounds=(1e-4, 2.0), method="bounded").x)


class WeightQuantiser(nn.Module):
    """Parametrisation of a weight: its nearest values of few bits, some of them zero.

    Attributes:
        precision: Number format of the layer; dense and in single precision at first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.precision = LayerPrecision()

    def forward(self, weight: Tensor) -> Tensor:
        """Return the rounded and pruned weights, of the same shape (C, ...)."""
        if weight.is_meta:
            return weight  # a trace, which is on meta, counts the operators in single precision
        if self.precision.weight_bits == FLOAT_BITS:
            return self._pruned(weight, weight)
        step, steps = self.rounded(weight.detach())
        if self.precision.weight_bits == ONE_BIT:
            near = weight.clamp(-1, 1) if self.precision.binarisation == "bnn" else weight
            return near + (step * steps - near.detach())
        if _noise.get():
            return self._pruned(_noisy(weight, step), weight)
        return weight + (step * steps - weight.detach())

    def kept(self, weight: Tensor) -> Tensor | None:
        """Return which weights are not pruned, bool (C, ...); None if all stay."""
        structure = self.precision.structure
        if structure is None or self.precision.density(weight.shape) == 1:
            return None
        mask = structure.mask(matrix_of(weight.detach().abs()), structure.density(None))
        return weight_of(mask, weight.shape)

    def _pruned(self, values: Tensor, weight: Tensor) -> Tensor:
        """Return values that are zero where a weight is pruned, with the gradients of all."""
        kept = self.kept(weight)
        return values if kept is None else values - (values * ~kept).detach()

    def rounded(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the step (C, 1, ...) or (1, 1, ...), and each weight in steps, (C, ...).

        The weights in steps are whole numbers, and zero for pruned ones. The step is that of dense
        weights, whose largest ones are those that stay.
        """
        step, steps = self._rounded_dense(weight)
        kept = self.kept(weight)
        return step, steps if kept is None else steps * kept

    def _rounded_dense(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        precision = self.precision
        first = 1 if precision.granularity == "channel" else 0
        dims = tuple(range(first, weight.dim()))
        if precision.weight_bits == ONE_BIT:
            return binary_weights(weight, precision.binarisation, dims)
        if precision.symmetry == "symmetric" or precision.weight_bits == _WHOLE_BITS:
            most = 2 ** (precision.weight_bits - 1) - 1
            spread = weight.square().mean(dims, keepdim=True).sqrt()
            widest = weight.abs().amax(dims, keepdim=True) / most
            step = _step(2 * most + 1, spread, widest)
            return step, (weight / step).round().clamp(-most, most)
        levels = 2**precision.weight_bits
        low = weight.amin(dims, keepdim=True).clamp_max(0)
        high = weight.amax(dims, keepdim=True).clamp_min(0)
        mean = weight.mean(dims, keepdim=True)
        spread = (weight - mean).square().mean(dims, keepdim=True).sqrt()
        step = _step(levels, spread, (high - low) / (levels - 1))
        reach = step * (levels - 1)
        start = torch.minimum(torch.maximum(mean - reach / 2, low), high - reach)
        zero = (-start / step).round().clamp(0, levels - 1)
        return step, ((weight / step).round() + zero).clamp(0, levels - 1) - zero


class ActivationQuantiser(nn.Module):
    """Rounding of a layer's input to few bits, with one scale and one zero point.

    In training mode, the range follows from each batch, and running means of its ends are kept, as
    a batch normalisation keeps its statistics. In evaluation mode, these means are the range.

    Attributes:
        precision: Number format of the layer; single precision at first.
        momentum: Weight of the newest batch in the running means, in (0, 1].
        threshold: Learned value of each input channel above which its sign is positive, for tensors
            of one bit in ReActNet's way; None if it is zero.

    Args:
        threshold: Shape of the thresholds, which has to broadcast with the input; None without.
    """

    low: Tensor
    high: Tensor
    threshold: nn.Parameter | None

    def __init__(self, threshold: tuple[int, ...] | None = None) -> None:
        super().__init__()
        made = None if threshold is None else nn.Parameter(torch.zeros(threshold))
        self.register_parameter("threshold", made)
        self.precision = LayerPrecision()
        self.momentum: float | None = 0.1
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """Return the rounded input, of the same shape."""
        if self.precision.activation_bits == FLOAT_BITS or x.is_meta:
            return x
        if self.threshold is not None and self.precision.has_thresholds:
            x = x - self.threshold
        if self.training:
            low, high = self._range(x.detach())
            momentum = 1.0 if self.momentum is None else self.momentum
            with torch.no_grad():
                self.low.lerp_(low, momentum)
                self.high.lerp_(high, momentum)
        else:
            low, high = self.low, self.high
        step, zero, most = self.grid(low, high)
        if self.precision.activation_bits == ONE_BIT:
            return binary_inputs(x, self.precision.binarisation, step.to(x.dtype))
        if _noise.get():
            return _noisy(torch.minimum(torch.maximum(x, low), high), step)
        return torch.fake_quantize_per_tensor_affine(x, step, zero.int(), 0, most)

    def grid(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return the step, the integer that stands for zero, and the largest integer.

        Signs are two steps apart, because padding is zero.
        """
        if self.precision.activation_bits == ONE_BIT:
            scale = high if self.precision.binarisation == "xnor" else torch.ones_like(high)
            return scale.clamp_min(_LEAST_STEP), torch.ones_like(high), 2
        most = 2**self.precision.activation_bits - 1
        step = ((high - low) / most).clamp_min(_LEAST_STEP)
        return step, (-low / step).round().clamp(0, most), most

    def _range(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ends of the range, which contains zero because padding has to be exact."""
        if self.precision.activation_bits == ONE_BIT:
            scale = x.float().abs().mean()
            return -scale, scale
        least, largest = x.amin().float(), x.amax().float()
        levels = 2**self.precision.activation_bits
        if self.precision.activation_bits == _WHOLE_BITS:  # fine enough for the whole range
            return least.clamp_max(0), largest.clamp_min(0)
        if least >= 0:  # as a rectified normal variable: one half of a symmetric quantiser
            spread = (2 * x.float().square().mean()).sqrt()
            reach = normal_step(2 * levels - 1) * spread * (levels - 1)
            return torch.zeros_like(least), torch.minimum(largest, reach)
        mean, spread = x.float().mean(), x.float().std()
        reach = normal_step(levels) * spread * (levels - 1)
        low = torch.maximum(least, mean - reach / 2).clamp_max(0)
        return low, torch.minimum(largest, low + reach).clamp_min(0)


def _noisy(values: Tensor, step: Tensor) -> Tensor:
    """Return values with uniform noise of the width of a step."""
    return values + step.to(values.dtype) * (torch.rand_like(values) - 0.5)


def _step(levels: int, spread: Tensor, widest: Tensor) -> Tensor:
    """Return the step for a standard deviation, at most ``widest``, which needs no clipping."""
    return torch.minimum(normal_step(levels) * spread, widest).clamp_min(_LEAST_STEP)
