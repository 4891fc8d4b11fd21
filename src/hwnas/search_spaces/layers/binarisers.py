"""Signs in place of weights and activations, with the gradients and scales of three methods.

- ``"bnn"`` (Courbariaux et al., "Binarized neural networks", NeurIPS 2016): signs without a scale;
  gradients pass where the value is from -1 to 1.
- ``"xnor"`` (Rastegari et al., "XNOR-Net", ECCV 2016): signs times the mean absolute value, of a
  channel's weights (equation 6), and of a layer's inputs. The paper has a scale for each position
  of the inputs, which no runtime computes.
- ``"react"`` (Liu et al., "ReActNet", ECCV 2020): weights as in ``"xnor"``, and inputs less a
  learned threshold for each channel (equation 3), without a scale. Gradients of inputs are those of
  a polynomial (Liu et al., "Bi-Real Net", ECCV 2018, equation 6).

The sign of zero is negative, so that the signs of inputs after a ReLU are those before it. Inputs
up to .001 count as zero: a channel that is the same for all images is zero after its batch
normalisation, but for errors of rounding, which differ between a network and its file.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "BINARISATIONS",
    "LEAST_POSITIVE",
    "Binarisation",
    "binary_inputs",
    "binary_weights",
    "signs",
]

Binarisation = Literal["bnn", "xnor", "react"]
BINARISATIONS: tuple[Binarisation, ...] = ("bnn", "xnor", "react")
LEAST_POSITIVE = 1e-3
"""Inputs up to this are negative."""
_LEAST_SCALE = 1e-8


def signs(values: Tensor, above: float = 0.0) -> Tensor:
    """Return 1 where a value is above a limit, and -1 elsewhere, in the type of the values."""
    return (values > above).to(values.dtype) * 2 - 1


def binary_weights(
    weight: Tensor, binarisation: Binarisation, dims: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return the scale of weights, and their signs.

    Args:
        weight: Weights (C, ...).
        binarisation: Method.
        dims: Dimensions that share a scale; they have size 1 in the scales.
    """
    mean = weight.abs().mean(dims, keepdim=True).clamp_min(_LEAST_SCALE)
    return torch.ones_like(mean) if binarisation == "bnn" else mean, signs(weight)


def binary_inputs(values: Tensor, binarisation: Binarisation, scale: Tensor) -> Tensor:
    """Return the signs of inputs times a scale, with the gradients of a method.

    Args:
        values: Inputs, less their thresholds if the method has them.
        binarisation: Method.
        scale: Positive number, of shape ().
    """
    near = values.clamp(-1, 1)
    if binarisation == "react":
        near = near * (2 - near.abs())
    return scale * (near + (signs(values, LEAST_POSITIVE) - near).detach())
