"""Places in a module for parts of shared tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.space import Segments

__all__ = ["Piece", "Slot", "corner", "pieces_of", "slots_of"]


def corner(tensor: Tensor, shape: torch.Size) -> Tensor:
    """The part of a shared tensor that a smaller network uses, as a view.

    Args:
        tensor: A shared weight or buffer; of a convolution (out, in / groups, height, width).
        shape: Shape of the part; nowhere larger than ``tensor``.

    Raises:
        ConfigError: The shapes do not nest.
    """
    if tensor.shape == shape:
        return tensor
    if tensor.dim() != len(shape) or any(s > t for s, t in zip(shape, tensor.shape, strict=True)):
        raise ConfigError(
            f"weights of shape {tuple(shape)} are no part of the shared {tuple(tensor.shape)}; "
            "the largest network of a space must be the largest in every tensor"
        )
    for dim, length in enumerate(shape):
        surplus = tensor.shape[dim] - length
        if surplus:
            spatial = tensor.dim() == 4 and dim >= 2
            tensor = tensor.narrow(dim, surplus // 2 if spatial else 0, length)
    return tensor


def pieces_of(tensor: Tensor, segments: Segments) -> Tensor:
    """The pieces of a tensor, joined."""
    for dim, pieces in segments:
        tensor = torch.cat([tensor.narrow(dim, start, n) for start, n in pieces], dim)
    return tensor


@dataclass(frozen=True)
class Slot:
    """A place in a skeleton for a part of a shared tensor.

    Attributes:
        holder: A module's own table of parameters or buffers.
        key: In that table.
        name: Of the shared tensor.
        shape: Of the part.
        segments: Which pieces the part is made of, where it is not the corner.
        buffer: Whether a forward pass may write it.
    """

    holder: dict[str, Any]
    key: str
    name: str
    shape: torch.Size
    segments: Segments = ()
    buffer: bool = False

    def fill(self, shared: Tensor) -> None:
        """Put the part of a shared tensor into its place."""
        whole = pieces_of(shared, self.segments) if self.segments else shared
        self.holder[self.key] = corner(whole, self.shape)

    def write_back(self, shared: Tensor) -> None:
        """Bring back what a forward pass wrote into a buffer that is no view of the shared one."""
        (dim, pieces) = self.segments[0]
        part, at = self.holder[self.key], 0
        for start, length in pieces:
            shared.narrow(dim, start, length).copy_(part.narrow(dim, at, length))
            at += length


def slots_of(
    module: nn.Module, prefix: str = "", segments: Mapping[str, Segments] | None = None
) -> Iterator[Slot]:
    """Where a module wants its weights and buffers.

    Args:
        module: A network, or a part of one.
        prefix: Of the module's name in the network.
        segments: See `SearchSpace.segments`.
    """
    for name, each in module.named_modules(prefix=prefix):
        for holder in (each._parameters, each._buffers):
            for key, tensor in holder.items():
                if tensor is not None:
                    full = f"{name}.{key}" if name else key
                    joined = (segments or {}).get(full, ())
                    yield Slot(holder, key, full, tensor.shape, joined, holder is each._buffers)


@dataclass(frozen=True)
class Piece:
    """A block of a skeleton, or a whole one.

    Attributes:
        module: Without weights.
        slots: All that it wants.
        written: Those that a forward pass writes although they are no views of shared tensors.
    """

    module: nn.Module
    slots: tuple[Slot, ...]
    written: tuple[Slot, ...]
