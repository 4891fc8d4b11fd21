"""What is done to a PyTorch network before it is fine-tuned for a variant, and undone after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import nn

__all__ = ["Conversion", "layers_with_weights"]


class Conversion(Protocol):
    """Changes a network in place so that training it makes it fit for a variant."""

    def begin(self, network: nn.Module) -> None:
        """Before the training: outputs become those that the variant would give."""

    def end(self, network: nn.Module) -> None:
        """After it: a plain network again, with the weights that were learned."""


def layers_with_weights(network: nn.Module) -> Iterator[nn.Conv2d | nn.Linear]:
    """The convolutions and linear layers of a network, in its order."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            yield module
