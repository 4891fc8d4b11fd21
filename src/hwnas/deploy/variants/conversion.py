"""Conversions of a PyTorch network before it is fine-tuned for a variant, undone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import nn

__all__ = ["Conversion", "layers_with_weights"]


class Conversion(Protocol):
    """Change of a network in place, so that training fits the network to a variant."""

    def begin(self, network: nn.Module) -> None:
        """Convert a network before training, so that its outputs become those of the variant."""

    def end(self, network: nn.Module) -> None:
        """Restore a plain network after training, with the learned weights."""


def layers_with_weights(network: nn.Module) -> Iterator[nn.Conv2d | nn.Linear]:
    """Yield the convolutions and linear layers of a network, in its order."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            yield module
