"""Activation of a network within a given one: the modules of one frame are set to its sizes.

Nothing is copied. The variant of a module for the options that it depends on is computed once, with
the places of its tensors in the shared ones. A network then takes one look-up for each module.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.any_model.axes import resize
from hwnas.search_spaces.any_model.blocks import ResidualRun
from hwnas.search_spaces.any_model.cutting import (
    Cut,
    PassThrough,
    module_of,
    plan,
    segments_of,
    shapes_of,
)
from hwnas.search_spaces.any_model.groups import ChannelGroup
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.choices import Option
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.supernet.shared_modules import SharedModule
from hwnas.search_spaces.supernet.weight_views import WeightBinding, WeightView

__all__ = ["ElasticModules"]


@dataclass(frozen=True)
class _Variant:
    """State of a module for given options of its choices.

    Attributes:
        numbers: Values of all numbers that the module stores, by name.
        binding: Slots of its tensors.
    """

    numbers: Mapping[str, Any]
    binding: WeightBinding


@dataclass(frozen=True)
class _ElasticPart:
    """Module that has tensors or numbers of its own.

    Attributes:
        name: Name of the module.
        module: Module in the frame.
        groups: Part of each group that lies in the module, by the name of the group's choice.
        variants: Variants made so far, by the options of these choices.
    """

    name: str
    module: nn.Module
    groups: Mapping[str, ChannelGroup]
    variants: dict[tuple[Option, ...], _Variant] = field(default_factory=dict)


class ElasticModules:
    """Networks of an elastic space without weights; see `SharedModules`.

    The newest module replaces the one before.

    Args:
        space: Space of the networks.
        whole: Whole network, on the meta device.
        groups: Channel groups, by the names of their choices.
        width: Function that returns the number of channels of a group, from the name of its choice
            and the option.
        runs: Runs of blocks, by the names of their choices.
        shared: Names of the shared tensors.
    """

    def __init__(
        self,
        space: SearchSpace,
        whole: nn.Module,
        groups: Mapping[str, ChannelGroup],
        width: Callable[[str, Option], int],
        runs: Mapping[str, ResidualRun],
        shared: Container[str],
    ) -> None:
        self._width = width
        self._space, self._fingerprint = space, space.fingerprint
        self._whole, self._shapes = whole, shapes_of(whole)
        missing = next((name for name in self._shapes if name not in shared), None)
        if missing is not None:
            raise ConfigError(
                f"elastic: the supernet has no {missing!r}; it belongs to another model"
            )
        self._frame = copy.deepcopy(whole).train()
        self._nothing = PassThrough()
        self._parts = self._found(groups)
        self._switches = [
            (name, rank, self._frame.get_submodule(_parent(block))._modules, block)
            for name, run in runs.items()
            for rank, block in enumerate(run.blocks)
        ]
        self._blocks = {block: self._frame.get_submodule(block) for *_, block in self._switches}
        self._around = {
            part.name: tuple(b for b in self._blocks if f"{part.name}.".startswith(f"{b}."))
            for part in self._parts
        }

    def of(self, architecture: Architecture) -> SharedModule:
        """Return the module of a network, without weights.

        Raises:
            ConfigError: The network is of another space.
        """
        if architecture.space != self._fingerprint:
            self._space.check(architecture)
        values = dict(architecture.values)
        bindings: list[WeightBinding] = []
        skipped = set()
        for name, rank, holder, block in self._switches:
            key = block.rpartition(".")[2]
            if rank < values[name]:  # type: ignore[operator]  # depths are numbers
                holder[key] = self._blocks[block]
                bindings.append(WeightBinding(self._blocks[block], (), ()))
            else:
                holder[key] = self._nothing
                skipped.add(block)
        for part in self._parts:
            if skipped and not skipped.isdisjoint(self._around[part.name]):
                continue
            options = tuple([values[name] for name in part.groups if name in values])
            variant = part.variants.get(options)
            if variant is None:
                variant = part.variants[options] = self._variant(part, values)
            part.module.__dict__.update(variant.numbers)
            bindings.append(variant.binding)
        return SharedModule(self._frame, tuple(bindings))

    def _found(self, groups: Mapping[str, ChannelGroup]) -> list[_ElasticPart]:
        within: dict[str, dict[str, ChannelGroup]] = defaultdict(dict)
        for choice, group in groups.items():
            names = {module_of(member.axis) for member in group.members}
            names |= {number.module for number in group.attributes}
            for name in names:
                within[name][choice] = _part(group, name)
        return [
            _ElasticPart(name, module, within.get(name, {}))
            for name, module in self._frame.named_modules()
            if name in within or module._parameters or module._buffers
        ]

    def _variant(self, part: _ElasticPart, values: Mapping[str, Option]) -> _Variant:
        widths = {
            group: self._width(name, values[name])
            for name, group in part.groups.items()
            if name in values
        }
        what = plan(self._whole, widths, shapes=self._shapes)
        slots = tuple(self._slots(part, what))
        binding = WeightBinding(
            part.module, slots, tuple(s for s in slots if s.segments and s.buffer)
        )
        return _Variant(self._numbers(part, what), binding)

    def _slots(self, part: _ElasticPart, what: Cut) -> list[WeightView]:
        found = []
        for holder in (part.module._parameters, part.module._buffers):
            for key, tensor in holder.items():
                if tensor is not None:
                    name = f"{part.name}.{key}" if part.name else key
                    dims, shape = what.tensors.get(name, {}), list(self._shapes[name])
                    for dim, positions in dims.items():
                        shape[dim] = len(positions)
                    found.append(
                        WeightView(
                            holder,
                            key,
                            name,
                            torch.Size(shape),
                            segments_of(dims),
                            holder is part.module._buffers,
                        )
                    )
        return found

    def _numbers(self, part: _ElasticPart, what: Cut) -> dict[str, Any]:
        """Return all numbers of a module whose sizes change; empty for other modules."""
        if not part.groups:
            return {}
        resized = copy.copy(self._whole.get_submodule(part.name))
        if part.name in what.sides:
            resize(resized, dict(what.sides[part.name]))
        numbers = {
            key: value
            for key, value in vars(resized).items()
            if type(value) in (int, tuple) and not key.startswith("_")
        }
        return numbers | {
            key: number for (name, key), number in what.attributes.items() if name == part.name
        }


def _part(group: ChannelGroup, name: str) -> ChannelGroup:
    """Return the part of a group that lies in a module."""
    return replace(
        group,
        members=tuple(member for member in group.members if module_of(member.axis) == name),
        attributes=tuple(number for number in group.attributes if number.module == name),
    )


def _parent(name: str) -> str:
    return name.rpartition(".")[0]
