"""Layers that can be pruned, and what the columns of their matrices multiply."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from hwnas.deploy.variants.conversion import layers_with_weights
from hwnas.search_spaces.layers.sparsity_structure import Structure

__all__ = ["Layer", "patches", "prunable_layers"]

Layer = nn.Conv2d | nn.Linear


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
        and structure.fits_weight(layer.weight.shape)
    }
