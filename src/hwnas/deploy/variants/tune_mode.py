"""Tune mode: fine-tuning with fixed normalisation statistics, in less memory.

A convolution and a batch normalisation in evaluation mode are one affine map. Eval mode computes
them one after the other and stores the intermediate result for the backward pass. Tune mode
multiplies the normalisation into the weights first, so there is no intermediate result. Outputs and
gradients are the same (You et al., "Efficient ConvBN blocks for transfer learning and beyond", ICLR
2024, section 3.3). Weights of both the convolution and the normalisation are trained.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hwnas.deploy.export.conv_norm import ConvNormPair, conv_norm_pairs

__all__ = ["TuneMode", "TunedConv"]


class TuneMode:
    """Conversion that merges convolutions with normalisations that follow them in a Sequential."""

    def __init__(self) -> None:
        self._pairs: list[ConvNormPair] = []

    def begin(self, network: nn.Module) -> None:
        """Merge the pairs; the statistics of their normalisations stay fixed from now on."""
        self._pairs = list(conv_norm_pairs(network))
        for pair in self._pairs:
            setattr(pair.parent, pair.conv_name, TunedConv(pair.conv, pair.norm))
            setattr(pair.parent, pair.norm_name, nn.Identity())

    def end(self, network: nn.Module) -> None:
        """Restore the convolutions and normalisations, with their learned weights."""
        for pair in self._pairs:
            setattr(pair.parent, pair.conv_name, pair.conv)
            setattr(pair.parent, pair.norm_name, pair.norm)


class TunedConv(nn.Module):
    """Convolution whose weights are multiplied by a normalisation in every pass.

    Args:
        conv: Convolution (N, C, H, W) -> (N, C', H', W').
        norm: Normalisation of C' channels, with running statistics.
    """

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the convolution and the normalisation in evaluation mode."""
        conv, norm = self.conv, self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        factor = torch.rsqrt(norm.running_var + norm.eps)
        if norm.affine:
            factor = norm.weight * factor
        shift = factor * ((0 if conv.bias is None else conv.bias) - norm.running_mean)
        if norm.affine:
            shift = shift + norm.bias
        folded = {"weight": conv.weight * factor[:, None, None, None]}
        if conv.bias is not None:
            y: Tensor = functional_call(conv, {**folded, "bias": shift}, (x,))
            return y
        y = functional_call(conv, folded, (x,))
        return y.add_(shift[:, None, None])  # in place: the unshifted output is not needed
