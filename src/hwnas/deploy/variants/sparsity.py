"""2:4 structured sparsity, which sparse tensor cores of a GPU multiply at twice the speed.

It follows GPUSQ-ViT (Yu et al., CVPR 2023) and Mishra et al., "Accelerating sparse deep neural
networks" (2021). In each group of four neighbours along the input, the two weights of largest
magnitude stay, and the network is fine-tuned with the dense one as its teacher. A processor without
such cores multiplies zeros like any other number, so the sparse network is no faster there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hwnas.deploy.variants.conversion import layers_with_weights
from hwnas.errors import ArtifactError

__all__ = ["Packed", "TwoOfFour", "is_two_of_four", "mask_of", "pack", "unpack"]

_GROUP, _KEPT = 4, 2


class TwoOfFour:
    """Conversion that sets half of the weights to zero in layers with a multiple of four inputs."""

    def begin(self, network: nn.Module) -> None:
        """Choose the weights to hold at zero; the choice stays fixed during training."""
        for layer in _sparse_layers(network):
            mask = mask_of(layer.weight.detach())
            parametrize.register_parametrization(layer, "weight", _Masked(mask))

    def end(self, network: nn.Module) -> None:
        """Remove the masks, and leave zeros in the weights."""
        for layer in _sparse_layers(network):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


class _Masked(nn.Module):
    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask


def _sparse_layers(network: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    """Return the layers with a multiple of four inputs, which excludes depthwise convolutions."""
    return [layer for layer in layers_with_weights(network) if layer.weight.shape[1] % _GROUP == 0]


def _rows(weight: Tensor) -> Tensor:
    """Return weights (C_out, C_in, ...) as (rows, C_in), with neighbouring inputs adjacent."""
    return weight.movedim(1, -1).reshape(-1, weight.shape[1])


def mask_of(weight: Tensor) -> Tensor:
    """Return the mask of the weights that stay.

    Args:
        weight: Weights (C_out, C_in, ...), C_in a multiple of four.

    Returns:
        Mask of the same shape and type: 1 for the two largest magnitudes of each four along C_in, 0
            for the others.
    """
    groups = _rows(weight).abs().reshape(-1, _GROUP)
    kept = groups.topk(_KEPT, dim=1).indices
    mask = torch.zeros_like(groups).scatter_(1, kept, 1.0)
    last = weight.movedim(1, -1).shape
    return mask.reshape(last).movedim(-1, 1).contiguous()


def is_two_of_four(weight: Tensor) -> bool:
    """Return whether at most two of each four neighbours along the input are nonzero."""
    if weight.dim() < 2 or weight.shape[1] % _GROUP:
        return False
    return bool(((_rows(weight).reshape(-1, _GROUP) != 0).sum(1) <= _KEPT).all())


@dataclass(frozen=True, eq=False)
class Packed:
    """Sparse matrix without its zeros, in the layout of sparse tensor cores.

    Attributes:
        values: Weights (rows, C_in / 2), the two of each group in their order.
        places: Positions of the weights in their groups, uint8 (rows, C_in / 8). A position has two
            bits, and two groups share a byte, with the first weight in the lowest bits. C_in is a
            multiple of eight.
        shape: Shape of the unpacked weights: (C_out, C_in, ...).
    """

    values: Tensor
    places: Tensor
    shape: torch.Size


def pack(weight: Tensor) -> Packed:
    """Remove the zeros of weights (C_out, C_in, ...), C_in a multiple of eight.

    Raises:
        ArtifactError: The weights are not 2:4 sparse, or C_in is not a multiple of eight.
    """
    if weight.dim() < 2 or weight.shape[1] % (2 * _GROUP):
        raise ArtifactError(
            f"weights of shape {tuple(weight.shape)} cannot be packed: expected a multiple of "
            f"{2 * _GROUP} input channels"
        )
    if not is_two_of_four(weight):
        raise ArtifactError(
            f"weights of shape {tuple(weight.shape)} are not 2:4 sparse; set weights to zero with "
            "TwoOfFour"
        )
    groups = _rows(weight).reshape(-1, _GROUP)
    # Nonzero weights first, then zeros to fill up, both in their original order.
    order = (groups == 0).to(torch.int8).argsort(dim=1, stable=True)[:, :_KEPT]
    places = order.sort(dim=1).values
    values = groups.gather(1, places)
    rows = weight.numel() // weight.shape[1]
    nibbles = (places[:, 0] | (places[:, 1] << 2)).to(torch.uint8).reshape(rows, -1, 2)
    return Packed(values.reshape(rows, -1), nibbles[..., 0] | (nibbles[..., 1] << 4), weight.shape)


def unpack(packed: Packed) -> Tensor:
    """Return the weights that `pack` packed."""
    nibbles = torch.stack([packed.places & 15, packed.places >> 4], dim=-1).reshape(-1)
    places = torch.stack([nibbles & 3, nibbles >> 2], dim=1).long()
    values = packed.values.reshape(-1, _KEPT)
    groups = values.new_zeros(len(values), _GROUP).scatter_(1, places, values)
    outputs, inputs, *rest = packed.shape
    return groups.reshape(outputs, *rest, inputs).movedim(-1, 1).contiguous()
