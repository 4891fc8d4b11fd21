"""Random pruning before training, with the same share of each layer as cropping.

This is pruning of single weights at initialisation, once the share of each layer is decided; which
weights are pruned then makes no difference (Cai et al., arXiv:2203.02549, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["densities", "density", "make_sparse"]


def densities(full: nn.Module, cropped: nn.Module) -> dict[str, float]:
    """Return the share of weights that each layer keeps, in (0, 1], by the weights' name.

    Args:
        full: The whole model.
        cropped: The same model with fewer channels.
    """
    smaller = dict(cropped.named_parameters())
    return {
        name: smaller[name].numel() / weights.numel()
        for name, weights in full.named_parameters()
        if weights.dim() > 1
    }


def make_sparse(network: nn.Module, shares: Mapping[str, float], seed: int) -> dict[str, Tensor]:
    """Set all but a random share of each layer's weights to zero, where training leaves them.

    The remaining weights are divided by the square root of the share. Cropped layers have the same
    scale, since their initialisation depends on the number of inputs that they sum over.

    Args:
        network: Freshly initialised network; its gradients are masked from now on.
        shares: Share of weights to keep, as from `densities`.
        seed: Seed of the choice of weights.

    Returns:
        Masks by name, with 1 where a weight is kept and 0 elsewhere.
    """
    generator = torch.Generator().manual_seed(seed)
    weights, masks = dict(network.named_parameters()), {}
    for name, share in shares.items():
        count = weights[name].numel()
        kept = torch.randperm(count, generator=generator)[: round(share * count)]
        mask = torch.zeros(count)
        mask[kept] = 1.0
        masks[name] = mask.view(weights[name].shape)
        with torch.no_grad():
            weights[name].mul_(masks[name]).div_(share**0.5)
        # AdamW does not move weights whose gradients were always zero, and decays zeros to zeros.
        weights[name].register_hook(masks[name].mul)
    return masks


def density(network: nn.Module) -> float:
    """Return the share of a network's weights that are not 0, without normalisation and biases."""
    weights = [parameter for parameter in network.parameters() if parameter.dim() > 1]
    kept = sum(int(each.count_nonzero()) for each in weights)
    return kept / sum(each.numel() for each in weights)
