"""Quantisation-aware training: weights and activations are rounded as int8 will round them.

It follows Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference: A
whitepaper" (2018), sections 2 and 3. Weights are symmetric with a scale for each output channel.
Activations are asymmetric with one scale for each tensor. Gradients pass straight through the
rounding, and ranges of activations are moving averages. The difference is that batch normalisation
is not folded during training. With a scale for each channel, folding would change nothing, because
the normalisation multiplies a whole channel and its scale alike.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from hwnas.deploy.quantization.saturation import LARGEST_REDUCED
from hwnas.deploy.targets.processor import sums_saturate
from hwnas.deploy.variants.conversion import layers_with_weights

__all__ = ["FakeQuantisation", "FakeQuantisedInput", "FakeQuantisedWeight"]

_INPUT = "fake_quantised_input"
_MOMENTUM = 0.05  # of the moving averages of activation ranges


class FakeQuantisation:
    """Conversion that rounds the weights and inputs of a network's convolutions and linear layers.

    Args:
        largest: Largest step of a weight: 127, or 64 in reduced range. If None, the value that
            `hwnas.deploy.quantization.quantize` uses on this machine.
    """

    def __init__(self, largest: int | None = None) -> None:
        self._largest = largest or (LARGEST_REDUCED if sums_saturate() else 127)
        self._hooks: list[RemovableHandle] = []

    def begin(self, network: nn.Module) -> None:
        """Make the network compute as if it were in int8."""
        for layer in list(layers_with_weights(network)):
            parametrize.register_parametrization(
                layer, "weight", FakeQuantisedWeight(self._largest)
            )
            layer.add_module(_INPUT, FakeQuantisedInput())
            self._hooks.append(layer.register_forward_pre_hook(_round_input))

    def end(self, network: nn.Module) -> None:
        """Remove the rounding; learned weights stay unrounded until they are quantised."""
        for hook in self._hooks:
            hook.remove()
        for layer in list(layers_with_weights(network)):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
            delattr(layer, _INPUT)


class FakeQuantisedWeight(nn.Module):
    """Rounding of weights (C, ...) to steps of one scale for each of the C output channels.

    Args:
        largest: Largest step: 127, or 64 in reduced range.
    """

    def __init__(self, largest: int = 127) -> None:
        super().__init__()
        self._largest = largest

    def forward(self, weight: Tensor) -> Tensor:
        """Return the nearest weights that int8 can represent; gradients pass straight through."""
        most = weight.detach().flatten(1).abs().amax(1)
        scale = (most / self._largest).clamp_min(torch.finfo(weight.dtype).tiny)
        zero = torch.zeros_like(scale, dtype=torch.int32)
        steps = self._largest
        return torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -steps, steps)


class FakeQuantisedInput(nn.Module):
    """Rounding of activations to steps 0..255 of a range that follows the data."""

    least: Tensor
    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("least", torch.tensor(float("nan")), persistent=False)
        self.register_buffer("largest", torch.tensor(float("nan")), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the nearest activations that eight bits can represent; zero is exact."""
        if self.training or self.least.isnan():
            self._follow(x.detach())
        scale = ((self.largest - self.least) / 255).clamp_min(1e-8)
        zero = (-self.least / scale).round().clamp(0, 255).to(torch.int32)
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)

    def _follow(self, x: Tensor) -> None:
        # Zero is always in the range, because padding has to be exact.
        least, largest = x.amin().float().clamp_max(0), x.amax().float().clamp_min(0)
        if self.least.isnan():
            self.least.copy_(least)
            self.largest.copy_(largest)
        else:
            self.least.lerp_(least, _MOMENTUM)
            self.largest.lerp_(largest, _MOMENTUM)


def _round_input(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    first, *others = inputs
    return layer.get_submodule(_INPUT)(first), *others
