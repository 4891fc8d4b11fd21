"""Large depthwise kernels with parallel dilated branches in training, one kernel after merging."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from hwnas.search_spaces.layers.conv import Activation, ConvNormAct, activation_of

__all__ = ["DILATED", "BranchedDepthwise", "merged_branches"]

DILATED: Mapping[int, tuple[tuple[int, int], ...]] = {
    5: ((3, 1), (3, 2)),
    7: ((5, 1), (3, 2), (3, 3)),
    9: ((5, 1), (5, 2), (3, 3), (3, 4)),
    11: ((5, 1), (5, 2), (3, 3), (3, 4), (3, 5)),
    13: ((5, 1), (7, 2), (3, 3), (3, 4), (3, 5)),
    15: ((5, 1), (7, 2), (3, 3), (3, 5), (3, 7)),
    17: ((5, 1), (9, 2), (3, 4), (3, 5), (3, 7)),
}
"""Kernel sizes and dilations of the branches, by the size of the large kernel (table 10 of the
UniRepLKNet paper)."""


class BranchedDepthwise(nn.Module):
    """Depthwise convolution with dilated branches: (N, C, H, W) -> (N, C, H / stride, W / stride).

    It is the dilated reparametrisation block of UniRepLKNet (Ding et al., CVPR 2024, section 3.1):
    a large kernel and several small dilated ones in parallel, each with its batch normalisation,
    are added in training. In deployment they are one kernel (`merged`), since a dilated kernel is a
    sparse large one.

    Args:
        channels: Channels C.
        kernel_size: Size of the large kernel, one of `DILATED`.
        stride: Stride of all branches.
        activation: Activation after the sum.
    """

    def __init__(
        self, channels: int, kernel_size: int, stride: int, activation: Activation
    ) -> None:
        super().__init__()
        self.large = ConvNormAct(channels, channels, kernel_size, stride, channels)
        self.dilated = nn.ModuleList(
            _dilated(channels, size, stride, dilation) for size, dilation in DILATED[kernel_size]
        )
        self.activation = activation_of(activation)
        self._sizes = channels, kernel_size, stride, activation

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of all branches, after the activation."""
        y: Tensor = self.large(x)
        for branch in self.dilated:
            y = y + branch(x)
        activated: Tensor = self.activation(y)
        return activated

    def merged(self) -> ConvNormAct:
        """Return the convolution that computes the same in evaluation mode.

        Its batch normalisation adds the bias and nothing else, so it is the layer of a block
        without branches.
        """
        channels, kernel_size, stride, activation = self._sizes
        plain = ConvNormAct(channels, channels, kernel_size, stride, channels, activation)
        plain.to(self.large.conv.weight.device)
        weight, bias = _fused(self.large)
        for branch in self.dilated:
            assert isinstance(branch, ConvNormAct)
            small, shift = _fused(branch)
            weight = weight + _spread(small, branch.conv.dilation[0], kernel_size)
            bias = bias + shift
        assert plain.norm.running_var is not None
        with torch.no_grad():
            plain.conv.weight.copy_(weight)
            plain.norm.bias.copy_(bias)
            plain.norm.running_var.fill_(1 - plain.norm.eps)
        return plain.train(self.training)


def merged_branches(network: nn.Module) -> nn.Module:
    """Merge all parallel branches of a network in place, and return it."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, BranchedDepthwise):
                setattr(module, name, child.merged())
    return network


def _dilated(channels: int, size: int, stride: int, dilation: int) -> ConvNormAct:
    branch = ConvNormAct(channels, channels, size, stride, channels)
    padding = dilation * (size // 2)
    conv = nn.Conv2d(
        channels, channels, size, stride, padding, dilation, groups=channels, bias=False
    )
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    branch.conv = conv
    return branch


def _fused(branch: ConvNormAct) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a convolution with its normalisation in evaluation mode."""
    conv, norm = branch.conv, branch.norm
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return conv.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale


def _spread(weight: Tensor, dilation: int, kernel_size: int) -> Tensor:
    """Return the large kernel that computes the same as a small one with a dilation."""
    one = weight.new_ones(1, 1, 1, 1)
    sparse = functional.conv_transpose2d(weight.flatten(0, 1)[:, None], one, stride=dilation)
    margin = (kernel_size - sparse.shape[-1]) // 2
    return functional.pad(sparse, [margin] * 4)
