"""Sparsity: structures, criteria, layerwise solvers, densities of layers, sparse fine-tuning."""

from hwnas.deploy.sparsity.criteria import CRITERIA, Criterion
from hwnas.deploy.sparsity.pruning import PrunedNetwork, prune_network
from hwnas.deploy.sparsity.settings import SparsitySettings
from hwnas.search_spaces.layers.sparsity_structure import Structure

__all__ = [
    "CRITERIA",
    "Criterion",
    "PrunedNetwork",
    "SparsitySettings",
    "Structure",
    "prune_network",
]
