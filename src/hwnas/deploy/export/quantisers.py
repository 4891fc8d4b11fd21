"""Export of networks with quantisers: in single precision, with their rounded values."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from hwnas.deploy.quantization.grids import LayerGrid
from hwnas.search_spaces.quantised.attached import WEIGHT, quantised_layers, removed

__all__ = ["without_quantisers"]

_CLIP = "clip"
_WHOLE_BITS = 8


def without_quantisers(network: nn.Module) -> dict[str, LayerGrid]:
    """Remove the quantisers of a network in evaluation mode, in place.

    Weights keep their rounded values. Inputs of fewer than eight bits are clipped to their range.

    Returns:
        The grid of each layer with rounded weights, by name; empty if there is none.
    """
    found, ranges = {}, {}
    for name, layer, of_weight, of_input in quantised_layers(network):
        precision, inputs = of_weight.precision, None
        if precision.activation_bits < _WHOLE_BITS:
            step, zero, most = of_input.grid(of_input.low, of_input.high)
            inputs = float(step), int(zero)
            ranges[name] = float(-zero * step), float((most - zero) * step)
        if precision.weight_bits <= _WHOLE_BITS:
            original = layer.get_parameter(WEIGHT)
            _, steps = of_weight.rounded(original.detach())
            found[name] = LayerGrid(steps.numpy().astype(np.float32), inputs)
    removed(network)
    for name, (low, high) in ranges.items():
        layer = network.get_submodule(name)
        layer.add_module(_CLIP, nn.Hardtanh(low, high))
        layer.register_forward_pre_hook(_clip_input)
    return found


def _clip_input(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    first, *others = inputs
    return layer.get_submodule(_CLIP)(first), *others
