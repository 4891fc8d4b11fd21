"""Pruning of a whole network, layer by layer, each with the inputs that it gets from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hwnas.deploy.sparsity.distribution import search_densities
from hwnas.deploy.sparsity.hessian import input_hessian
from hwnas.deploy.sparsity.layerwise import evaluating, pruned_matrix
from hwnas.deploy.sparsity.matrices import prunable_layers
from hwnas.deploy.sparsity.settings import SparsitySettings
from hwnas.deploy.sparsity.supernet import DensitySupernet
from hwnas.deploy.variants.conversion import layers_with_weights
from hwnas.errors import ArtifactError
from hwnas.search_spaces.layers.sparsity_structure import weight_of

__all__ = ["PrunedNetwork", "prune_network"]


@dataclass(frozen=True)
class PrunedNetwork:
    """Masks of a pruned network.

    Attributes:
        masks: Masks of weights (C_out, C_in, ...) by the name of their layer, bool.
        dense: Names of layers with weights that were left as they are, since the structure does not
            fit them or they are never called.
    """

    masks: Mapping[str, Tensor] = field(hash=False)
    dense: tuple[str, ...]

    @property
    def densities(self) -> dict[str, float]:
        """Share of weights that stay in each pruned layer."""
        return {name: float(mask.double().mean()) for name, mask in self.masks.items()}

    @property
    def density(self) -> float:
        """Share of weights that stay in all pruned layers together."""
        kept = sum(int(mask.sum()) for mask in self.masks.values())
        return kept / sum(mask.numel() for mask in self.masks.values())


@torch.no_grad()
def prune_network(
    network: nn.Module, batches: Sequence[Tensor], settings: SparsitySettings
) -> PrunedNetwork:
    """Prune a network in place.

    A layer is pruned for the inputs that it gets once the layers before it are pruned.

    Args:
        network: Trained network from (N, ...) to outputs, on the CPU.
        batches: Inputs (N, ...) that errors are computed on, such as calibration images.
        settings: Structure, density and criterion.

    Raises:
        ArtifactError: No layer fits the structure.
    """
    layers, masks = prunable_layers(network, settings.structure), dict[str, Tensor]()
    with evaluating(network):
        densities = dict.fromkeys(layers, settings.share)
        if settings.searched and layers:
            densities |= search_densities(DensitySupernet(network, layers, batches, settings))
        for name, layer in layers.items():
            hessian = input_hessian(network, layer, batches)
            if hessian is None:
                continue
            pruned, shape = pruned_matrix(layer, hessian, settings, densities[name]), layer.weight
            layer.weight.copy_(weight_of(pruned.matrix, shape.shape))
            masks[name] = weight_of(pruned.mask, shape.shape)
    if not masks:
        raise ArtifactError(
            f"no layer of the network can have sparsity structure {settings.structure.name}; "
            "choose another, such as unstructured"
        )
    names = {module: name for name, module in network.named_modules()}
    others = [names[layer] for layer in layers_with_weights(network) if names[layer] not in masks]
    return PrunedNetwork(masks, tuple(others))
