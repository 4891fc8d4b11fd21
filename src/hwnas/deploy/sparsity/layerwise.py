"""Pruning of one layer, and what whole networks need for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from hwnas.deploy.sparsity.criteria import CRITERIA, PrunedMatrix
from hwnas.deploy.sparsity.hessian import InputHessian
from hwnas.deploy.sparsity.matrices import Layer
from hwnas.deploy.sparsity.refinement import refine
from hwnas.deploy.sparsity.settings import SparsitySettings
from hwnas.search_spaces.layers.sparsity_structure import matrix_of

__all__ = ["evaluating", "pruned_matrix"]


@torch.no_grad()
def pruned_matrix(
    layer: Layer, hessian: InputHessian, settings: SparsitySettings, density: float
) -> PrunedMatrix:
    """Return the matrix of a layer, pruned and, if the settings say so, refined.

    Args:
        layer: Layer whose matrix fits the structure; unchanged.
        hessian: Moments of its inputs.
        settings: Structure and criterion.
        density: Share of the weights that stay.
    """
    dense, structure, hessian = matrix_of(layer.weight.detach()), settings.structure, hessian.damped
    pruned = CRITERIA[settings.criterion].prune(dense, hessian, structure, density)
    return refine(dense, pruned, hessian, structure).pruned if settings.refined else pruned


@contextlib.contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Keep a network in evaluation mode for a while."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
