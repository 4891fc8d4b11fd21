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
from hwnas.search_spaces.supernet.weight_views import WeightBinding, weight_views

__all__ = ["SharedModule", "SharedModuleSource", "SharedModules"]

_KEPT = 64  # networks kept whole, for spaces that define no `block_specs`
_KEPT_BLOCKS = 128  # modules kept of each block; bounds the memory of spaces with very many options


@dataclass(frozen=True)
class SharedModule:
    """Network without weights, and its connection to the shared tensors.

    Attributes:
        module: Module that computes the network once its views are set.
        bindings: Blocks of the network, each with its views of the shared tensors.
    """

    module: nn.Module
    bindings: tuple[WeightBinding, ...]


class SharedModuleSource(Protocol):
    """Source of the modules for a space's networks; a new one may invalidate the previous one."""

    def of(self, architecture: Architecture) -> SharedModule:
        """Return the module of a network, without weights."""
        ...


class SharedModules:
    """Modules without weights for the networks of a space.

    If the space defines the blocks of its networks (`SearchSpace.block_specs`), each block is
    made once and inserted into a frame that all networks share; the newest module then replaces
    the one before. For other spaces, the most recently used networks are kept whole. In both cases
    memory is bounded, whatever the number of networks.

    Args:
        space: Space of the networks.
        shared: Names of the shared tensors.
    """

    def __init__(self, space: SearchSpace, shared: Container[str]) -> None:
        self._space, self._shared = space, shared
        self._fingerprint = space.fingerprint
        self._whole: OrderedDict[Architecture, SharedModule] = OrderedDict()
        self._frame = None
        if space.block_specs:
            self._frame = _Frame(self._built(space.largest()), space.block_specs, self._binding)

    def of(self, architecture: Architecture) -> SharedModule:
        """Return the module of a network, without weights.

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
        binding = self._binding(built, "", self._space.segments(architecture))
        self._whole[architecture] = SharedModule(built, (binding,))
        if len(self._whole) > _KEPT:
            self._whole.popitem(last=False)
        return self._whole[architecture]

    def _built(self, architecture: Architecture) -> nn.Module:
        with blueprint():
            return self._space.build(architecture)

    def _binding(
        self, module: nn.Module, name: str, segments: Mapping[str, Segments] | None = None
    ) -> WeightBinding:
        views = tuple(weight_views(module, name, segments))
        for view in views:
            if view.name not in self._shared:
                raise ConfigError(
                    f"{self._space.name}: the largest network has no {view.name!r}; name the "
                    "parts of every network as the largest one names them"
                )
        return WeightBinding(module, views, tuple(v for v in views if v.segments and v.buffer))


class _Frame:
    """Frame around the blocks of all networks, and a cache of the blocks made so far.

    Args:
        module: Largest network.
        blocks: Specifications of its blocks; no network has any other block.
        bind: Function that binds a block to the shared tensors, by its name in the network.
    """

    def __init__(
        self,
        module: nn.Module,
        blocks: Sequence[BlockSpec],
        bind: Callable[[nn.Module, str], WeightBinding],
    ) -> None:
        self._module, self._bind = module, bind
        names = {block.name for block in blocks}
        self._rows = {
            parent: _Row(module.get_submodule(parent), parent, names)
            for parent in dict.fromkeys(b.name.rpartition(".")[0] for b in blocks if b.depth)
        }
        self._entries = [self._entry(block) for block in blocks]

    def filled(self, values: Values) -> SharedModule:
        """Return the module of the network that these values define."""
        bindings = []
        for row in self._rows.values():
            row.present.clear()
        for block, depth, position, key_of, kept, siblings, child in self._entries:
            if not depth or values[depth] >= position:
                key = key_of(values)
                binding = kept.get(key)
                if binding is None:
                    binding = self._made(block, values)
                    if len(kept) >= _KEPT_BLOCKS:
                        del kept[next(iter(kept))]
                    kept[key] = binding
                siblings[child] = binding.module
                bindings.append(binding)
        for row in self._rows.values():
            row.fill()
        return SharedModule(self._module, tuple(bindings))

    def _made(self, block: BlockSpec, values: Values) -> WeightBinding:
        with blueprint():
            module = block.module(block.key(values))
        return self._bind(module, block.name)

    def _entry(self, block: BlockSpec) -> _BlockEntry:
        """Return a block with all that `filled` needs for it, as a tuple.

        The tuple avoids look-ups in `filled`, which runs many times in every training step.
        """
        parent, _, child = block.name.rpartition(".")
        row = self._rows.get(parent)
        siblings = self._module.get_submodule(parent)._modules if row is None else row.present
        names = block.decided_by.values()
        key_of = itemgetter(*names) if names else _nothing
        return block, block.depth, block.position, key_of, {}, siblings, child


_BlockEntry = tuple[
    BlockSpec,
    str,
    int,
    Callable[[Values], Any],
    dict[Any, WeightBinding],
    dict[str, nn.Module | None],
    str,
]
"""Block, depth, position, function of the key, kept blocks, sibling blocks, name among them."""


def _nothing(values: Values) -> None:
    """Return None, the key of a block that is the same in all networks."""


class _Row:
    """Module whose blocks may be absent.

    Args:
        module: Module that contains all of its blocks.
        name: Name of the module.
        blocks: Names of all blocks.
    """

    def __init__(self, module: nn.Module, name: str, blocks: Container[str]) -> None:
        self._module = module
        self.present: dict[str, nn.Module | None] = {}
        prefix = f"{name}." if name else ""
        self._children = [
            (child, None if prefix + child in blocks else own)
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
