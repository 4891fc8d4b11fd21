"""Layers with fewer channels, in place: dense tensors, no masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from hwnas.search_spaces.channel_groups import Axis, Wiring

__all__ = ["crop"]


def crop(model: nn.Module, wiring: Wiring, channels: Sequence[int]) -> None:
    """Leave a freshly initialised model the first channels of each group.

    What is left keeps its initial values, so that a model's own initialisation stays in force.
    Weights that sum over fewer inputs are scaled up by the square root of the ratio, as every
    initialisation by fan-in (He et al., ICCV 2015, section 2.2) would have it.

    Args:
        model: The one that the wiring is of, or another of its class.
        wiring: Where the channels are.
        channels: How many of each group are left.
    """
    modules = dict(model.named_modules())
    for axis in wiring.axes:
        size = sum(channels[segment.group] * segment.repeat for segment in axis.segments)
        _crop_layer(modules[axis.module], axis, size)


def _crop_layer(layer: nn.Module, axis: Axis, size: int) -> None:
    if isinstance(layer, _ConvNd):
        _crop_convolution(layer, axis, size)
    elif isinstance(layer, nn.Linear):
        if axis.side == "in":
            scale = math.sqrt(layer.in_features / size)
            layer.in_features = size
            _narrow(layer, "weight", 1, size, scale)
        else:
            layer.out_features = size
            _narrow(layer, "weight", 0, size)
            _narrow(layer, "bias", 0, size)
    elif isinstance(layer, _NormBase):
        layer.num_features = size
        for name in ("weight", "bias", "running_mean", "running_var"):
            _narrow(layer, name, 0, size)
    elif isinstance(layer, nn.GroupNorm):
        layer.num_channels = size
        for name in ("weight", "bias"):
            _narrow(layer, name, 0, size)
    elif isinstance(layer, nn.PReLU):
        layer.num_parameters = size
        _narrow(layer, "weight", 0, size)


def _crop_convolution(layer: _ConvNd, axis: Axis, size: int) -> None:
    transposed = isinstance(layer, _ConvTransposeNd)
    if axis.side == "in":
        scale = math.sqrt(layer.in_channels / size)
        layer.in_channels = size
        _narrow(layer, "weight", 0 if transposed else 1, size, scale)
        return
    layer.out_channels = size
    if axis.side == "both":
        layer.in_channels = layer.groups = size
        _narrow(layer, "weight", 0, size)
    else:
        _narrow(layer, "weight", 1 if transposed else 0, size)
    _narrow(layer, "bias", 0, size)


def _narrow(layer: nn.Module, name: str, dim: int, size: int, scale: float = 1.0) -> None:
    """The first elements of a layer's tensor in its place, if it has such a tensor."""
    tensor: Any = getattr(layer, name)
    if tensor is None or tensor.shape[dim] == size:
        return
    part = tensor.detach().narrow(dim, 0, size) * scale
    part = part.clone(memory_format=torch.contiguous_format)
    kept = nn.Parameter(part, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else part
    setattr(layer, name, kept)
