"""Convolutions and linear layers as matrices (outputs, inputs), and what their columns multiply.

A convolution is the product of its matrix with patches of its input. Neighbouring columns are
neighbouring channels of the same position in the kernel, since sparse cores multiply these.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hwnas.deploy.sparsity.structure import Structure
from hwnas.deploy.variants.conversion import layers_with_weights

__all__ = ["Layer", "matrix_of", "patches", "prunable_layers", "weight_of"]

Layer = nn.Conv2d | nn.Linear


def matrix_of(weight: Tensor) -> Tensor:
    """Return weights (C_out, C_in, ...) as a matrix (C_out, inputs), channels innermost."""
    return weight.movedim(1, -1).reshape(weight.shape[0], -1)


def weight_of(matrix: Tensor, shape: torch.Size) -> Tensor:
    """Return the weights (C_out, C_in, ...) of a matrix, the inverse of `matrix_of`."""
    outputs, inputs, *kernel = shape
    return matrix.reshape(outputs, *kernel, inputs).movedim(-1, 1).contiguous()


def patches(layer: Layer, x: Tensor) -> Tensor:
    """Return what the matrix of a layer multiplies, (positions, inputs), from the layer's input.

    Args:
        layer: Linear layer, or convolution without groups.
        x: Input of the layer: (..., inputs) or (N, C, H, W).
    """
    if isinstance(layer, nn.Linear):
        return x.reshape(-1, x.shape[-1])
    height, width = layer.kernel_size
    padded = _padded(layer, x)
    unfolded = functional.unfold(
        padded, layer.kernel_size, dilation=layer.dilation, stride=layer.stride
    )
    images, _, places = unfolded.shape
    apart = unfolded.reshape(images, layer.in_channels, height * width, places)
    return apart.permute(0, 3, 2, 1).reshape(images * places, -1)


def _padded(layer: nn.Conv2d, x: Tensor) -> Tensor:
    if layer.padding == "valid":
        return x
    if isinstance(layer.padding, str):  # "same"
        sides = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        down, right = ((side // 2, side - side // 2) for side in sides)
    else:
        down, right = ((side, side) for side in layer.padding)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return functional.pad(x, (*right, *down), mode)


def prunable_layers(network: nn.Module, structure: Structure) -> dict[str, Layer]:
    """Return the layers of a network whose matrices fit a structure, by name, in its order.

    Convolutions with groups are left out, which have few weights, and for blocks all convolutions
    with more than one position: no product skips their blocks.
    """
    names = {module: name for name, module in network.named_modules()}
    return {
        names[layer]: layer
        for layer in layers_with_weights(network)
        if getattr(layer, "groups", 1) == 1
        and (not structure.blocks or layer.weight[0, 0].numel() == 1)
        and _fits(layer, structure)
    }


def _fits(layer: Layer, structure: Structure) -> bool:
    outputs, channels = layer.weight.shape[:2]
    if structure.group:  # groups do not reach across positions of a kernel
        return structure.fits(outputs, channels)
    return structure.fits(outputs, layer.weight[0].numel())
