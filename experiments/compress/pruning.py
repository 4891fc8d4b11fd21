"""The rival: a model pruned by torch-pruning, before it is fine-tuned."""

from __future__ import annotations

import copy

import torch
import torch_pruning  # type: ignore[import-untyped]
from torch import nn

from experiments.own_models.models import SelfAttention

__all__ = ["pruned"]

_STEP = 4  # channels remain in multiples of this number
_UNWRAPPED = {"positions": 2, "scale": 0}
"""Dimension of the channels in parameters that belong to no layer, by the end of their names."""


def pruned(model: nn.Module, input_shape: tuple[int, int, int], ratio: float) -> nn.Module:
    """Return a copy of a model without a share of its channels and attention heads.

    The dependencies between layers are found by DepGraph (Fang et al., CVPR 2023); the channels of
    each group with the smallest norm are removed.

    Args:
        model: Trained model; its last linear layer gives the outputs.
        input_shape: Channels, height and width of its images.
        ratio: Share of the channels of each group to remove, in (0, 1).
    """
    network = copy.deepcopy(model).eval().requires_grad_(True)
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    attention = [module for module in network.modules() if isinstance(module, SelfAttention)]
    heads = {
        layer: each.num_heads for each in attention for layer in (each.query, each.key, each.value)
    }
    pruner = torch_pruning.pruner.BasePruner(
        network,
        torch.randn(2, *input_shape),
        importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=ratio,
        ignored_layers=linear[-1:],
        round_to=attention[0].head_dim if attention else _STEP,
        num_heads=heads,
        prune_num_heads=bool(attention),
        head_pruning_ratio=ratio if attention else 0.0,
        unwrapped_parameters=[
            (parameter, dimension)
            for name, parameter in network.named_parameters()
            for end, dimension in _UNWRAPPED.items()
            if name.rpartition(".")[2] == end
        ],
    )
    pruner.step()
    for each in attention:
        each.num_heads = pruner.num_heads[each.query]
        each.head_dim = each.query.out_features // each.num_heads
    return network
