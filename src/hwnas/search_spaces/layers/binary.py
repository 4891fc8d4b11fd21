"""Weights and activations of one bit, and the activation functions of networks that have them.

There are three ways to train them, the operators that BiBench compares (Qin et al., "BiBench:
Benchmarking and analyzing network binarization", ICML 2023):

- ``"bnn"``: signs of weights and activations (Courbariaux et al., "Binarized neural networks",
  NeurIPS 2016). Gradients of activations pass where these are between -1 and 1.
- ``"xnor"``: the signs of the weights of each output channel are multiplied by the mean of their
  magnitudes (Rastegari et al., "XNOR-Net", ECCV 2016, equation 6). Activations have no scales.
- ``"react"``: as ``"xnor"``, and the input is compared with a learned threshold for each channel,
  with a gradient closer to that of the sign (ReActNet, Liu et al., ECCV 2020, equations 4 to 6).

Gradients of weights pass straight through the sign. A sign needs values of both signs. Networks
whose activations have one bit therefore have other activation functions between their layers:
``Hardtanh``, or with ``"react"`` the shifted PReLU of ReActNet.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

__all__ = ["Binarisation", "InputSign", "ShiftedPReLU", "signs", "weight_signs"]

Binarisation = Literal["bnn", "xnor", "react"]
_FIRST_SLOPE = 0.25  # of PReLU for negative inputs


def signs(x: Tensor) -> Tensor:
    """Return 1 where a value is at least 0, and -1 elsewhere."""
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)


def weight_signs(
    weight: Tensor, dims: tuple[int, ...], binary: Binarisation
) -> tuple[Tensor, Tensor]:
    """Return the scale of the signs of weights, and the signs.

    Args:
        weight: Weights, (C, ...).
        dims: Dimensions that have one scale in common.
        binary: Way to binarise; the scale is 1 with ``"bnn"``, otherwise the mean magnitude.

    Returns:
        Scales with size 1 in these dimensions, and signs of the shape of the weights.
    """
    scale = weight.abs().mean(dims, keepdim=True)
    return torch.ones_like(scale) if binary == "bnn" else scale, signs(weight)


class InputSign(nn.Module):
    """Sign of the input of a layer, with a gradient that is zero beyond 1 and -1.

    Args:
        binary: Way to binarise.
        channels: Channels of the input.
        axis: Dimension of the channels.

    Attributes:
        threshold: Threshold of each channel, (channels,); None unless it is learned.
    """

    def __init__(self, binary: Binarisation, channels: int, axis: int) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(channels)) if binary == "react" else None
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Return 1 or -1 for each value of x, shape (N, C, H, W) or (..., C)."""
        if self.threshold is None:
            soft = x.clamp(-1, 1)
        else:
            shape = [1] * x.dim()
            shape[self.axis] = -1
            x = x - self.threshold.view(shape)
            soft = x.clamp(-1, 1)
            soft = soft * (2 - soft.abs())
        return soft + (signs(x) - soft).detach() if self.training else signs(x)


class ShiftedPReLU(nn.Module):
    """PReLU with learned shifts of its input and its output for each channel (RPReLU of ReActNet).

    Args:
        channels: Channels of the maps.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.zeros(channels))
        self.after = nn.Parameter(torch.zeros(channels))
        self.slope = nn.Parameter(torch.full((channels,), _FIRST_SLOPE))

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of the shape (N, C, H, W) of x."""
        before, after = (each.view(-1, 1, 1) for each in (self.before, self.after))
        return nn.functional.prelu(x - before, self.slope) + after
