"""Conversion of a network to a sparse one, whose zeros training leaves in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hwnas.deploy.sparsity.pruning import PrunedNetwork, prune_network
from hwnas.deploy.sparsity.settings import SparsitySettings
from hwnas.deploy.variants.fake_quantisation import FakeQuantisation

__all__ = ["SparseConversion"]


class SparseConversion:
    """Conversion that prunes a network and holds its zeros during the training.

    Args:
        settings: Structure, density and criterion.
        batches: Inputs (N, ...) that errors are computed on.
        rounding: Conversion that rounds the sparse network as int8 will; None if it stays in
            floating point.

    Attributes:
        pruned: Masks of the network; None before `begin`.
    """

    def __init__(
        self,
        settings: SparsitySettings,
        batches: Sequence[Tensor],
        rounding: FakeQuantisation | None = None,
    ) -> None:
        self.pruned: PrunedNetwork | None = None
        self._settings, self._batches, self._rounding = settings, batches, rounding

    def begin(self, network: nn.Module) -> None:
        """Prune the network; the choice of zeros stays fixed during training."""
        self.pruned = prune_network(network, self._batches, self._settings)
        for name, mask in self.pruned.masks.items():
            layer = network.get_submodule(name)
            parametrize.register_parametrization(layer, "weight", _Masked(mask))
        if self._rounding is not None:
            self._rounding.begin(network)

    def end(self, network: nn.Module) -> None:
        """Remove masks and rounding, and leave zeros in the weights."""
        assert self.pruned is not None
        if self._rounding is not None:
            self._rounding.end(network)
        for name, mask in self.pruned.masks.items():
            layer = network.get_submodule(name)
            if parametrize.is_parametrized(layer, "weight"):
                parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
            with torch.no_grad():  # where rounding was removed, the mask was, too
                layer.get_parameter("weight").mul_(mask)


class _Masked(nn.Module):
    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask
