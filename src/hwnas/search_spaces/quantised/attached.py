"""Quantisers on the layers of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hwnas.search_spaces.layers.quantisers import (
    ActivationQuantiser,
    LayerPrecision,
    WeightQuantiser,
)

__all__ = [
    "THRESHOLD",
    "WEIGHT",
    "attach",
    "quantisable",
    "quantised_layers",
    "removed",
    "set_precision",
]

WEIGHT = "parametrizations.weight.original"
"""Name, within a layer that has quantisers, of its weight before rounding."""
_INPUT = "input_quantiser"
THRESHOLD = f"{_INPUT}.threshold"
"""Name, within a layer that has quantisers, of the thresholds of its inputs."""


def attach(
    network: nn.Module, has_thresholds: Callable[[str], bool] = lambda layer: False
) -> nn.Module:
    """Put quantisers on the weights and inputs of all convolutions and linear layers, in place.

    Tensors keep their values; the weight of a layer is then named
    `WEIGHT` within the layer.

    Args:
        network: Network in single precision.
        has_thresholds: Function from a layer's name to whether it has a learned threshold for each
            input channel.

    Returns:
        The same network.
    """
    for name, layer in list(quantisable(network)):
        # The usual check computes with the weight, which fails for weights without memory.
        parametrize.register_parametrization(layer, "weight", WeightQuantiser(), unsafe=True)
        shape = _threshold_shape(layer) if has_thresholds(name) else None
        layer.add_module(_INPUT, ActivationQuantiser(shape))
        layer.register_forward_pre_hook(_round_input)
    return network


def quantisable(network: nn.Module) -> Iterator[tuple[str, nn.Conv2d | nn.Linear]]:
    """Yield the name of each layer whose weights can be quantised, and the layer."""
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            yield name, layer


def quantised_layers(
    network: nn.Module,
) -> Iterator[tuple[str, nn.Module, WeightQuantiser, ActivationQuantiser]]:
    """Yield the name of each layer that has quantisers, the layer, and its two quantisers."""
    for name, layer in network.named_modules():
        of_input = layer._modules.get(_INPUT)
        if isinstance(of_input, ActivationQuantiser):
            of_weight = layer.get_submodule("parametrizations.weight.0")
            assert isinstance(of_weight, WeightQuantiser)
            yield name, layer, of_weight, of_input


def set_precision(network: nn.Module, precision_of: Callable[[str], LayerPrecision]) -> None:
    """Set the number format of each layer that has quantisers, by the layer's name."""
    for name, _, of_weight, of_input in quantised_layers(network):
        of_weight.precision = of_input.precision = precision_of(name)


def removed(network: nn.Module) -> nn.Module:
    """Remove all quantisers in place; weights keep their rounded values."""
    for _, layer, of_weight, _ in list(quantised_layers(network)):
        original = layer.get_parameter(WEIGHT)
        with torch.no_grad():
            rounded = nn.Parameter(of_weight(original).clone(), original.requires_grad)
        # PyTorch's own removal changes the class, which copies of the layer share.
        layer.__class__ = parametrize.type_before_parametrizations(layer)
        del layer.parametrizations
        layer.register_parameter("weight", rounded)
        delattr(layer, _INPUT)
        layer._forward_pre_hooks.clear()
    return network


def _threshold_shape(layer: nn.Conv2d | nn.Linear) -> tuple[int, ...]:
    """Return a shape that broadcasts with a layer's inputs and has their channels."""
    return (layer.in_channels, 1, 1) if isinstance(layer, nn.Conv2d) else (layer.in_features,)


def _round_input(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    first, *others = inputs
    return layer.get_submodule(_INPUT)(first), *others
