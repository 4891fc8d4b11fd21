"""Views of shared tensors that serve as the weights of a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.space.building import Segments

__all__ = ["WeightBinding", "WeightView", "corner", "joined_segments", "weight_views"]


def corner(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Return the part of a shared tensor that a smaller network uses, as a view.

    The part is the first positions of each dimension, but the centre of a kernel's height and
    width.

    Args:
        tensor: Shared weight or buffer; of a convolution (out, in / groups, height, width).
        shape: Shape of the part; no dimension is larger than that of ``tensor``.

    Raises:
        ConfigError: The shapes do not nest.
    """
    if tensor.shape == shape:
        return tensor
    if tensor.dim() != len(shape) or any(s > t for s, t in zip(shape, tensor.shape, strict=True)):
        raise ConfigError(
            f"weights of shape {tuple(shape)} do not fit into the shared weights of shape "
            f"{tuple(tensor.shape)}; the largest network of a space must be the largest in every "
            "tensor"
        )
    for dim, length in enumerate(shape):
        surplus = tensor.shape[dim] - length
        if surplus:
            spatial = tensor.dim() == 4 and dim >= 2
            tensor = tensor.narrow(dim, surplus // 2 if spatial else 0, length)
    return tensor


def joined_segments(tensor: Tensor, segments: Segments) -> Tensor:
    """Return the segments of a tensor, concatenated."""
    for dim, pieces in segments:
        tensor = torch.cat([tensor.narrow(dim, start, n) for start, n in pieces], dim)
    return tensor


@dataclass(frozen=True)
class WeightView:
    """Parameter or buffer of a module that is a view of a part of a shared tensor.

    Attributes:
        holder: A module's dictionary of parameters or of buffers.
        key: Key in that dictionary.
        name: Name of the shared tensor.
        shape: Shape of the part.
        segments: Pieces that the part consists of; empty if the part is the corner.
        buffer: Whether the tensor is a buffer, which a forward pass may write.
    """

    holder: dict[str, Any]
    key: str
    name: str
    shape: torch.Size
    segments: Segments = ()
    buffer: bool = False

    def fill(self, shared: Tensor) -> None:
        """Set the module's parameter or buffer to its part of a shared tensor."""
        whole = joined_segments(shared, self.segments) if self.segments else shared
        self.holder[self.key] = corner(whole, self.shape)

    def write_back(self, shared: Tensor) -> None:
        """Copy a buffer back into the shared tensor after a forward pass wrote it.

        Only a buffer that is not a view of the shared tensor needs this.
        """
        (dim, pieces) = self.segments[0]
        part, at = self.holder[self.key], 0
        for start, length in pieces:
            shared.narrow(dim, start, length).copy_(part.narrow(dim, at, length))
            at += length


def weight_views(
    module: nn.Module, prefix: str = "", segments: Mapping[str, Segments] | None = None
) -> Iterator[WeightView]:
    """Yield a view for each parameter and buffer of a module.

    Args:
        module: Network or a part of one.
        prefix: Name of the module in the network.
        segments: Segments by tensor name; see `SearchSpace.segments`.
    """
    for name, each in module.named_modules(prefix=prefix):
        for holder in (each._parameters, each._buffers):
            for key, tensor in holder.items():
                if tensor is not None:
                    full = f"{name}.{key}" if name else key
                    joined = (segments or {}).get(full, ())
                    yield WeightView(
                        holder, key, full, tensor.shape, joined, holder is each._buffers
                    )


@dataclass(frozen=True)
class WeightBinding:
    """Block of a network, or a whole network, without weights, and its views of shared tensors.

    Attributes:
        module: Module without weights.
        views: Views for all of its parameters and buffers.
        written: Buffers that a forward pass writes although they are copies of shared tensors.
    """

    module: nn.Module
    views: tuple[WeightView, ...]
    written: tuple[WeightView, ...]
