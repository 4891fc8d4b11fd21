"""Supernet: one set of weights for every network of a space.

The shared weights are the state of the space's shared network. Every network uses the corner of
each tensor of its own names: the first channels of every channel dimension, and the centre of every
kernel (once-for-all, Cai et al., ICLR 2020, section 3; without its kernel transformation matrices,
as in BigNAS, Yu et al., ECCV 2020). The rule reads only shapes and names, so it serves every space
whose networks nest. A space whose networks use other segments of a tensor defines them
(`SearchSpace.segments`).

Sizes of a layer share a tensor in this way. Operators that stand side by side, among which a choice
selects one, have weights of their own under names of their own
(`hwnas.search_spaces.layers.candidate_operators`); a training step leaves the weights of operators
that it does not run without gradients, so the optimiser leaves them as they are. The shared network
is the largest one, together with all of these operators.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hwnas.search_spaces.layers.quantisers import ActivationQuantiser
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.supernet.weight_views import (
    WeightBinding,
    corner,
    joined_segments,
    weight_views,
)

__all__ = ["KeepsStatistics", "Supernet", "batch_norms", "with_statistics"]

KeepsStatistics = nn.modules.batchnorm._BatchNorm | ActivationQuantiser
"""Modules that in training mode keep running statistics of their inputs, by their momentum."""


class Supernet(nn.Module):
    """Module that contains all networks of a space.

    ``shared`` is the space's shared network and owns every parameter. The forward pass runs the
    active architecture, a module without weights of its own, on views of these parameters.
    Gradients and running statistics of normalisation therefore flow back into the parameters and
    buffers of ``shared``.

    Args:
        space: Space whose networks share weights.
        shared: Shared network of another supernet, with which this one has its weights in common; a
            new one if None.
    """

    def __init__(self, space: SearchSpace, shared: nn.Module | None = None) -> None:
        super().__init__()
        self.space = space
        self.shared = space.shared_network() if shared is None else shared
        self._tensors = self._shared_tensors()
        self._modules_of = space.shared_modules(frozenset(self._tensors))
        self._bindings: tuple[WeightBinding, ...] = ()
        self.activate(space.largest())

    def activate(self, architecture: Architecture) -> None:
        """Make ``forward`` compute this architecture."""
        module = self._modules_of.of(architecture)
        # Kept out of nn.Module's registry: the module has no weights of its own.
        self.__dict__["active"], self._bindings = module.module, module.bindings
        training = self.training
        for binding in module.bindings:
            if binding.module.training is not training:
                binding.module.train(training)

    active: nn.Module
    """Active network without weights; its modules carry the modes of the forward pass."""

    def forward(self, images: Tensor) -> Tensor:
        """Return outputs of the active architecture for images of shape (N, *input_shape)."""
        tensors = self._tensors
        for binding in self._bindings:
            for view in binding.views:
                view.fill(tensors[view.name])
        outputs: Tensor = self.active(images)
        with torch.no_grad():
            for binding in self._bindings:
                for view in binding.written:
                    view.write_back(tensors[view.name])
        return outputs

    def extract(self, architecture: Architecture) -> nn.Module:
        """Return an architecture as a plain module with its own copies of the weights.

        The module gives the same output as the architecture does when active.
        """
        network = self.space.build(architecture)
        tensors = self.shared.state_dict()
        needed = network.state_dict()
        segments = self.space.segments(architecture)
        network.load_state_dict(
            {
                n: corner(joined_segments(tensors[n], segments.get(n, ())), value.shape)
                for n, value in needed.items()
            }
        )
        return network.train(self.training)

    def train(self, mode: bool = True) -> Supernet:
        """Set training or evaluation mode, also of the active network."""
        super().train(mode)
        if "active" in self.__dict__:
            self.active.train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Supernet:
        """Move to another device or type, and update the table of shared tensors.

        A move replaces buffers.
        """
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._tensors = self._shared_tensors()
        return self

    def _shared_tensors(self) -> dict[str, Tensor]:
        return {view.name: view.holder[view.key] for view in weight_views(self.shared)}


def with_statistics(network: nn.Module) -> list[KeepsStatistics]:
    """Return the modules with running statistics that a forward pass of ``network`` uses."""
    root = network.active if isinstance(network, Supernet) else network
    return [module for module in root.modules() if isinstance(module, KeepsStatistics)]


def batch_norms(network: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return the batch normalisations that a forward pass of ``network`` uses."""
    found = with_statistics(network)
    return [module for module in found if isinstance(module, nn.modules.batchnorm._BatchNorm)]
