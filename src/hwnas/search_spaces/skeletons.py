"""Networks without weights, which a supernet runs on parts of its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.blueprint import blueprint
from hwnas.search_spaces.space import SearchSpace, Segments

__all__ = [
    "Piece",
    "Skeleton",
    "SkeletonSource",
    "Skeletons",
    "Slot",
    "corner",
    "pieces_of",
    "slots_of",
]

_KEPT = 64  # whole networks, of spaces that do not say what their blocks depend on


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


@dataclass(frozen=True)
class Skeleton:
    """A network without weights.

    Attributes:
        module: Computes it once all slots are filled.
        pieces: What has slots.
    """

    module: nn.Module
    pieces: tuple[Piece, ...]


class SkeletonSource(Protocol):
    """Gives the skeletons of a space's networks; a newer one may take the place of the last."""

    def of(self, architecture: Architecture) -> Skeleton:
        """The skeleton of a network."""
        ...


class Skeletons:
    """The skeletons of a space's networks.

    Where the space says what its blocks depend on (`SearchSpace.blocks`), each block is made once,
    and a network is put together of blocks in a frame that all networks share: the newest skeleton
    takes the place of the one before. Of other spaces the last networks are kept as they are.

    Args:
        space: Of the networks.
        shared: Names of the shared tensors.
    """

    def __init__(self, space: SearchSpace, shared: Container[str]) -> None:
        self._space, self._shared = space, shared
        self._fingerprint = space.fingerprint
        self._whole: OrderedDict[Architecture, Skeleton] = OrderedDict()
        largest = space.largest()
        places = space.blocks(largest)
        self._frame = None if places is None else _Frame(self._built(largest), places)

    def of(self, architecture: Architecture) -> Skeleton:
        """The skeleton of a network.

        Raises:
            ConfigError: The network is of another space, or has a tensor that is not shared.
        """
        if architecture.space != self._fingerprint:
            self._space.check(architecture)
        keys = self._space.blocks(architecture)
        if self._frame is None or keys is None:
            return self._kept(architecture)
        missing = self._frame.missing(keys)
        if missing:
            built = self._built(architecture)
            for place in missing:
                piece = self._piece(built.get_submodule(place), place)
                self._frame.keep(place, keys[place], piece)
        return self._frame.filled(keys)

    def _kept(self, architecture: Architecture) -> Skeleton:
        if architecture in self._whole:
            self._whole.move_to_end(architecture)
            return self._whole[architecture]
        built = self._built(architecture)
        piece = self._piece(built, "", self._space.segments(architecture))
        self._whole[architecture] = Skeleton(built, (piece,))
        if len(self._whole) > _KEPT:
            self._whole.popitem(last=False)
        return self._whole[architecture]

    def _built(self, architecture: Architecture) -> nn.Module:
        with blueprint():
            return self._space.build(architecture)

    def _piece(
        self, module: nn.Module, place: str, segments: Mapping[str, Segments] | None = None
    ) -> Piece:
        slots = tuple(slots_of(module, place, segments))
        for slot in slots:
            if slot.name not in self._shared:
                raise ConfigError(
                    f"{self._space.name}: the largest network has no {slot.name!r}; name the "
                    "parts of every network as the largest one names them"
                )
        return Piece(module, slots, tuple(s for s in slots if s.segments and s.buffer))


class _Frame:
    """What is around blocks, and all blocks that there were so far.

    Args:
        module: The largest network.
        places: Of its blocks, which no network has others than.
    """

    def __init__(self, module: nn.Module, places: Iterable[str]) -> None:
        self.module = module
        self._pieces: dict[str, dict[Hashable, Piece]] = {place: {} for place in places}
        parents = dict.fromkeys(place.rpartition(".")[0] for place in self._pieces)
        # Of each module that holds blocks: its children, with the places of those that are blocks.
        self._templates = [
            (container, [(n, _place(parent, n, self._pieces), m) for n, m in children])
            for parent in parents
            for container in (module.get_submodule(parent),)
            for children in (tuple(container.named_children()),)
        ]

    def missing(self, keys: Mapping[str, Hashable]) -> list[str]:
        """Places whose block was not there yet."""
        return [place for place, key in keys.items() if key not in self._pieces[place]]

    def keep(self, place: str, key: Hashable, piece: Piece) -> None:
        """Keep a block."""
        self._pieces[place][key] = piece

    def filled(self, keys: Mapping[str, Hashable]) -> Skeleton:
        """The network with these blocks, all of which are kept."""
        chosen = {place: self._pieces[place][key] for place, key in keys.items()}
        for container, template in self._templates:
            container.__dict__["_modules"] = {
                name: chosen[place].module if place else own
                for name, place, own in template
                if not place or place in chosen
            }
        return Skeleton(self.module, tuple(chosen.values()))


def _place(parent: str, child: str, places: Container[str]) -> str:
    """The name of a child if a block stands there, else nothing."""
    name = f"{parent}.{child}" if parent else child
    return name if name in places else ""
