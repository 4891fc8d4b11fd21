"""Supernet of a trained network whose layers are each pruned to several densities.

It follows Tyr-the-Pruner (Li et al., "Tyr-the-Pruner: Structural pruning LLMs via global sparsity
distribution optimization", NeurIPS 2025). Layers are pruned one after the other, and the inputs of
a layer depend on the densities of those before it, which are not known yet. So its versions are
pruned for the expected outputs of the layers before, over all of their versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hwnas.deploy.sparsity.hessian import input_hessian
from hwnas.deploy.sparsity.layerwise import pruned_matrix
from hwnas.deploy.sparsity.matrices import Layer
from hwnas.deploy.sparsity.settings import SparsitySettings
from hwnas.search_spaces.layers.sparsity_structure import weight_of

__all__ = ["DensitySupernet"]


class DensitySupernet:
    """Network with several versions of each prunable layer.

    Args:
        network: Trained network in evaluation mode; `restore` gives it its weights back.
        layers: Layers to prune, by name, in the order of execution.
        batches: Inputs (N, ...) that errors are computed on.
        settings: Structure, criterion and average density.
    """

    def __init__(
        self,
        network: nn.Module,
        layers: Mapping[str, Layer],
        batches: Sequence[Tensor],
        settings: SparsitySettings,
    ) -> None:
        self.settings = settings
        self._network, self._batches = network, batches
        self._dense = {name: layer.weight.detach().clone() for name, layer in layers.items()}
        self._layers = dict(layers)
        self._expected = self._outputs()
        self._versions: dict[str, dict[float, Tensor]] = {}
        self.costs = self._counted()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers that have versions."""
        return tuple(self.costs)

    @property
    def budget(self) -> float:
        """Largest total cost: the average density's share of that of the dense layers."""
        return self.settings.share * sum(self.costs.values())

    def cost(self, densities: Mapping[str, float]) -> float:
        """Return the weights or multiply-accumulates that stay with some densities."""
        return sum(cost * densities[name] for name, cost in self.costs.items())

    def build(self, densities: Mapping[str, Sequence[float]]) -> None:
        """Prune each layer to each of its densities, in place of earlier versions."""
        self.restore()
        self._versions = {}
        for name in self.names:
            layer = self._layers[name]
            hessian = input_hessian(self._network, layer, self._batches)
            assert hessian is not None  # `costs` has only layers that are called
            shape, versions = layer.weight.shape, dict[float, Tensor]()
            for density in densities[name]:
                pruned = pruned_matrix(layer, hessian, self.settings, density)
                versions[density] = weight_of(pruned.matrix, shape)
            self._versions[name] = versions
            # The layer is linear, so the mean of its weights has the mean of its outputs.
            self._load(name, torch.stack(list(versions.values())).mean(0))
        self.restore()

    def error(self, densities: Mapping[str, float]) -> float:
        """Return the squared error of the outputs as a share of their squares.

        Args:
            densities: A density that the layer was built with, by name; layers left out are dense.
        """
        for name in self.names:
            kept = self._versions[name][densities[name]] if name in densities else None
            self._load(name, self._dense[name] if kept is None else kept)
        squared = (self._outputs() - self._expected).square().sum()
        return float(squared / self._expected.square().sum().clamp_min(1e-30))

    def restore(self) -> None:
        """Give the network the weights of the trained one."""
        for name, weight in self._dense.items():
            self._load(name, weight)

    @torch.no_grad()
    def _load(self, name: str, weight: Tensor) -> None:
        self._layers[name].weight.copy_(weight)

    @torch.no_grad()
    def _outputs(self) -> Tensor:
        return torch.cat([self._network(batch) for batch in self._batches]).double()

    def _counted(self) -> dict[str, float]:
        """Return the cost of each layer that is called, in the unit of the settings."""
        costs = {}
        for name, layer in self._layers.items():
            hessian = input_hessian(self._network, layer, self._batches[:1])
            if hessian is not None:
                each = hessian.positions if self.settings.by_macs else 1.0
                costs[name] = each * layer.weight.numel()
        return costs
