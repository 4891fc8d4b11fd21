"""Fine-tuning that feels eight bits: weights and activations are rounded as int8 will round them.

After Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference: A
whitepaper" (2018), sections 2 and 3: weights symmetric with a scale for each output channel,
activations asymmetric with one for the tensor, gradients straight through the rounding, ranges of
activations as moving averages. Where it differs: batch normalisation is not folded while training.
With a scale for each channel that changes nothing, for the normalisation multiplies a whole channel
and the scale with it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from hwnas.deploy.variants.conversion import layers_with_weights

__all__ = ["FakeQuantisation", "FakeQuantisedInput", "FakeQuantisedWeight"]

_INPUT = "fake_quantised_input"
_MOMENTUM = 0.05  # of the ranges of activations


class FakeQuantisation:
    """Rounds weights and inputs of all convolutions and linear layers of one network."""

    def __init__(self) -> None:
        self._hooks: list[RemovableHandle] = []

    def begin(self, network: nn.Module) -> None:
        """From now on the network computes as if it had eight bits."""
        for layer in list(layers_with_weights(network)):
            parametrize.register_parametrization(layer, "weight", FakeQuantisedWeight())
            layer.add_module(_INPUT, FakeQuantisedInput())
            self._hooks.append(layer.register_forward_pre_hook(_round_input))

    def end(self, network: nn.Module) -> None:
        """The weights stay as they were learned; who quantises them rounds them once."""
        for hook in self._hooks:
            hook.remove()
        for layer in list(layers_with_weights(network)):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
            delattr(layer, _INPUT)


class FakeQuantisedWeight(nn.Module):
    """Weights (C, ...) rounded to -127..127 times a scale for each of the C output channels."""

    def forward(self, weight: Tensor) -> Tensor:
        """The nearest weights that eight bits can hold; the gradient goes straight through."""
        largest = weight.detach().flatten(1).abs().amax(1)
        scale = (largest / 127).clamp_min(torch.finfo(weight.dtype).tiny)
        zero = torch.zeros_like(scale, dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -127, 127)


class FakeQuantisedInput(nn.Module):
    """Activations rounded to 0..255 between a least and a largest value, which follow the data."""

    least: Tensor
    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("least", torch.tensor(float("nan")), persistent=False)
        self.register_buffer("largest", torch.tensor(float("nan")), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The nearest activations that eight bits can hold; zero is one of them exactly."""
        if self.training or self.least.isnan():
            self._follow(x.detach())
        scale = ((self.largest - self.least) / 255).clamp_min(1e-8)
        zero = (-self.least / scale).round().clamp(0, 255).to(torch.int32)
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)

    def _follow(self, x: Tensor) -> None:
        # Zero is always in the range, for padding has to be exact.
        least, largest = x.amin().clamp_max(0), x.amax().clamp_min(0)
        if self.least.isnan():
            self.least.copy_(least)
            self.largest.copy_(largest)
        else:
            self.least.lerp_(least, _MOMENTUM)
            self.largest.lerp_(largest, _MOMENTUM)


def _round_input(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    first, *others = inputs
    return layer.get_submodule(_INPUT)(first), *others
