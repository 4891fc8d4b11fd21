"""Penalty on weights that are hard to quantise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hwnas.search_spaces.quantised.attached import WEIGHT, quantised_layers

__all__ = ["weight_distribution_loss"]

_KURTOSIS = 1.8  # of the uniform distribution
_LEAST_VARIANCE = 1e-12


def weight_distribution_loss(network: nn.Module) -> Tensor:
    """Return how far the weights of a network are from a symmetric, uniform distribution.

    It is the weight distribution regularisation of EQ-Net (Xu et al., ICCV 2023, section 3.3): the
    mean over layers of S^2 + (K - 1.8)^2, with the skewness S and the kurtosis K of a layer's
    weights. Uniform weights lose least whatever the number of bits (Shkolnik et al., "Robust
    quantization: One model to rule them all", NeurIPS 2020).

    Args:
        network: Network with quantisers, such as the shared one of a supernet; its weights count as
            they are before rounding.

    Returns:
        A scalar with gradients; zero for a network without quantisers.
    """
    losses = []
    for _, layer, _, _ in quantised_layers(network):
        weight = layer.get_parameter(WEIGHT)
        centred = weight - weight.mean()
        normal = centred / centred.square().mean().clamp_min(_LEAST_VARIANCE).sqrt()
        skewness, kurtosis = normal.pow(3).mean(), normal.pow(4).mean()
        losses.append(skewness.square() + (kurtosis - _KURTOSIS).square())
    return torch.stack(losses).mean() if losses else torch.zeros(())
