"""Export of networks with quantisers: in single precision, with their rounded values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.deploy.quantization.grids import LayerGrid
from hwnas.search_spaces.layers.binarisers import LEAST_POSITIVE
from hwnas.search_spaces.layers.quantisers import ONE_BIT
from hwnas.search_spaces.quantised.attached import WEIGHT, quantised_layers, removed

__all__ = ["without_quantisers"]

_CLIP = "clip"
_WHOLE_BITS = 8


def without_quantisers(network: nn.Module) -> dict[str, LayerGrid]:
    """Remove the quantisers of a network in evaluation mode, in place.

    Weights keep their rounded values. Inputs of fewer than eight bits are clipped to their range,
    those of one bit replaced by their signs, times their scale.

    Returns:
        The grid of each layer with rounded weights, by name; empty if there is none.
    """
    found: dict[str, LayerGrid] = {}
    limited: dict[str, nn.Module] = {}
    for name, layer, of_weight, of_input in quantised_layers(network):
        precision, inputs = of_weight.precision, None
        binary = precision.activation_bits == ONE_BIT
        if precision.activation_bits < _WHOLE_BITS:
            step, zero, most = of_input.grid(of_input.low, of_input.high)
            inputs = float(step), int(zero)
            if binary:
                limited[name] = _Signs(float(step), of_input.threshold)
            else:
                limited[name] = nn.Hardtanh(float(-zero * step), float((most - zero) * step))
        if precision.weight_bits <= _WHOLE_BITS:
            original = layer.get_parameter(WEIGHT)
            _, steps = of_weight.rounded(original.detach())
            found[name] = LayerGrid(steps.numpy().astype(np.float32), inputs, binary)
    removed(network)
    for name, limit in limited.items():
        layer = network.get_submodule(name)
        layer.add_module(_CLIP, limit)
        layer.register_forward_pre_hook(_clip_input)
    return found


class _Signs(nn.Module):
    """Module that replaces each value by its sign, times a scale."""

    _limit: Tensor

    def __init__(self, scale: float, threshold: Tensor | None) -> None:
        super().__init__()
        self._scale = scale
        limit = torch.zeros(()) if threshold is None else threshold.detach()
        self.register_buffer("_limit", limit + LEAST_POSITIVE)

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > self._limit, self._scale, -self._scale)


def _clip_input(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    first, *others = inputs
    return layer.get_submodule(_CLIP)(first), *others
