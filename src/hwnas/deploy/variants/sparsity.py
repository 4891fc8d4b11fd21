"""Weights with 2:4 sparsity in the layout of sparse cores, which multiply them twice as fast.

Of each four neighbours along the input, at most two are nonzero (Mishra et al., "Accelerating
sparse deep neural networks", 2021). A processor without such cores multiplies zeros like any other
number, so the sparse network is no faster there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hwnas.errors import ArtifactError

__all__ = ["Packed", "is_two_of_four", "pack", "unpack"]

_GROUP, _KEPT = 4, 2


def _rows(weight: Tensor) -> Tensor:
    """Return weights (C_out, C_in, ...) as (rows, C_in), with neighbouring inputs adjacent."""
    return weight.movedim(1, -1).reshape(-1, weight.shape[1])


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
            f"weights of shape {tuple(weight.shape)} are not 2:4 sparse; prune them to "
            "structure 2of4 first"
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
