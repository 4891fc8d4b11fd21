"""Networks without weights, which a supernet runs on parts of its shared tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.building import Segments
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.supernet.block_specs import BlockSpec, Values
from hwnas.search_spaces.supernet.blueprint import blueprint
from hwnas.search_spaces.supernet.weight_views import WeightBinding, slots_of

__all__ = ["SharedModule", "SharedModuleSource", "SharedModules"]

_KEPT = 64  # networks kept whole, for spaces that define no `places`
_KEPT_BLOCKS = 128  # blocks kept at each place; bounds the memory of spaces with very many options


@dataclass(frozen=True)
class SharedModule:
    """Network without weights, and its connection to the shared tensors.

    Attributes:
        module: Module that computes the network once all slots are filled.
        pieces: Blocks of the network, each with its slots.
    """

    module: nn.Module
    pieces: tuple[WeightBinding, ...]


class SharedModuleSource(Protocol):
    """Source of the skeletons of a space's networks; a new one may invalidate the previous one."""

    def of(self, architecture: Architecture) -> SharedModule:
        """Return the skeleton of a network."""
        ...


class SharedModules:
    """Skeletons of a space's networks.

    If the space defines the blocks of its networks (`SearchSpace.places`), each block is made once
    and inserted into a frame that all networks share; the newest skeleton then replaces the one
    before. For other spaces, the most recently used networks are kept whole. In both cases memory
    is bounded, whatever the number of networks.

    Args:
        space: Space of the networks.
        shared: Names of the shared tensors.
    """

    def __init__(self, space: SearchSpace, shared: Container[str]) -> None:
        self._space, self._shared = space, shared
        self._fingerprint = space.fingerprint
        self._whole: OrderedDict[Architecture, SharedModule] = OrderedDict()
        self._frame = None
        if space.places:
            self._frame = _Frame(self._built(space.largest()), space.places, self._piece)

    def of(self, architecture: Architecture) -> SharedModule:
        """Return the skeleton of a network.

        Raises:
            ConfigError: The network is of another space, or has a tensor that is not shared.
        """
        if architecture.space != self._fingerprint:
            self._space.check(architecture)
        if self._frame is None:
            return self._kept(architecture)
        return self._frame.filled(self._space.values(architecture))

    def _kept(self, architecture: Architecture) -> SharedModule:
        if architecture in self._whole:
            self._whole.move_to_end(architecture)
            return self._whole[architecture]
        built = self._built(architecture)
        piece = self._piece(built, "", self._space.segments(architecture))
        self._whole[architecture] = SharedModule(built, (piece,))
        if len(self._whole) > _KEPT:
            self._whole.popitem(last=False)
        return self._whole[architecture]

    def _built(self, architecture: Architecture) -> nn.Module:
        with blueprint():
            return self._space.build(architecture)

    def _piece(
        self, module: nn.Module, place: str, segments: Mapping[str, Segments] | None = None
    ) -> WeightBinding:
        slots = tuple(slots_of(module, place, segments))
        for slot in slots:
            if slot.name not in self._shared:
                raise ConfigError(
                    f"{self._space.name}: the largest network has no {slot.name!r}; name the "
                    "parts of every network as the largest one names them"
                )
        return WeightBinding(module, slots, tuple(s for s in slots if s.segments and s.buffer))


class _Frame:
    """Frame around the blocks of all networks, and a cache of the blocks made so far.

    Args:
        module: Largest network.
        places: Specifications of its blocks; no network has a block at any other place.
        piece: Function that makes a piece of a block and the name of its place.
    """

    def __init__(
        self,
        module: nn.Module,
        places: Sequence[BlockSpec],
        piece: Callable[[nn.Module, str], WeightBinding],
    ) -> None:
        self._module, self._piece = module, piece
        names = {place.name for place in places}
        self._rows = {
            parent: _Row(module.get_submodule(parent), parent, names)
            for parent in dict.fromkeys(p.name.rpartition(".")[0] for p in places if p.depth)
        }
        self._sites = [self._site(place) for place in places]

    def filled(self, values: Values) -> SharedModule:
        """Return the skeleton of the network that these values define."""
        pieces = []
        for row in self._rows.values():
            row.present.clear()
        for place, depth, position, key_of, kept, siblings, child in self._sites:
            if not depth or values[depth] >= position:
                key = key_of(values)
                piece = kept.get(key)
                if piece is None:
                    piece = self._made(place, values)
                    if len(kept) >= _KEPT_BLOCKS:
                        del kept[next(iter(kept))]
                    kept[key] = piece
                siblings[child] = piece.module
                pieces.append(piece)
        for row in self._rows.values():
            row.fill()
        return SharedModule(self._module, tuple(pieces))

    def _made(self, place: BlockSpec, values: Values) -> WeightBinding:
        with blueprint():
            module = place.module(place.key(values))
        return self._piece(module, place.name)

    def _site(self, place: BlockSpec) -> _Site:
        """Return a place with all that `filled` needs for it, as a tuple.

        The tuple avoids look-ups in `filled`, which runs many times in every training step.
        """
        parent, _, child = place.name.rpartition(".")
        row = self._rows.get(parent)
        siblings = self._module.get_submodule(parent)._modules if row is None else row.present
        names = place.decided_by.values()
        key_of = itemgetter(*names) if names else _nothing
        return place, place.depth, place.position, key_of, {}, siblings, child


_Site = tuple[
    BlockSpec,
    str,
    int,
    Callable[[Values], Any],
    dict[Any, WeightBinding],
    dict[str, nn.Module | None],
    str,
]
"""Place, depth, position, function of the key, kept blocks, sibling blocks, name among them."""


def _nothing(values: Values) -> None:
    """Return None, the key of a block that is the same in all networks."""


class _Row:
    """Module whose blocks may be absent.

    Args:
        module: Module that contains all of its blocks.
        name: Name of the module.
        places: Names of all blocks.
    """

    def __init__(self, module: nn.Module, name: str, places: Container[str]) -> None:
        self._module = module
        self.present: dict[str, nn.Module | None] = {}
        prefix = f"{name}." if name else ""
        self._children = [
            (child, None if prefix + child in places else own)
            for child, own in module.named_children()
        ]

    def fill(self) -> None:
        """Set the module's children to the present blocks, in order among the other children."""
        present = self.present
        self._module.__dict__["_modules"] = {
            child: present[child] if own is None else own
            for child, own in self._children
            if own is not None or child in present
        }
