"""Space of the networks of another space, each with an early exit or without one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.cost_model.workload import Workload
from hwnas.search_spaces.early_exit.network import EarlyExitNetwork, exit_heads
from hwnas.search_spaces.early_exit.places import BlockWidths, ExitPlace, exit_places
from hwnas.search_spaces.early_exit.settings import EarlyExitConfig
from hwnas.search_spaces.early_exit.workload import early_exit_workload
from hwnas.search_spaces.layers.branches import merged_branches
from hwnas.search_spaces.quantised.space import QuantisedSpace
from hwnas.search_spaces.registry import named_space
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.building import Segments, StageOutline
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.space.space_plugin import SMALL, SpacePlugin
from hwnas.search_spaces.supernet.block_specs import BlockSpec
from hwnas.search_spaces.supernet.blueprint import blueprint

__all__ = ["PLUGINS", "EarlyExitSpace", "early_exit"]

_SHARE, _AFTER = "exit_share", "exit_after"
_NETWORK = "network."
"""Start of the names of the tensors of the network without an exit."""


class EarlyExitSpace(SearchSpace):
    """Space of the networks of another space, each with an early exit or without one.

    Two choices are added: the share of images that shall leave early (0 for no exit), and the place
    of the exit. Options of the share fall, since networks become costlier then. The largest network
    has no exit, so that it teaches the others by its outputs at the end alone.

    Args:
        networks: Space of the networks without exits, which classify images.
        config: Options of the exits.

    Raises:
        ConfigError: The networks have no place for an exit, or no vector of class scores.
    """

    name = "early-exit"

    def __init__(self, networks: SearchSpace, config: EarlyExitConfig | None = None) -> None:
        self.networks, self.config = networks, config or EarlyExitConfig()
        self.nests, self.pretrained = networks.nests, networks.pretrained
        self.traceable = networks.traceable
        if isinstance(networks, QuantisedSpace):
            raise ConfigError(
                "space quantised ships in int8, in which exits are not exported; name the space of "
                "its networks in [space.network]"
            )
        self.places: Mapping[str, ExitPlace] = {
            place.name: place for place in exit_places(networks, self.config.places)
        }
        shape = self._widths.outputs(networks.smallest())
        if len(shape) != 1:
            raise ConfigError(
                f"networks of space {networks.name} give outputs of shape {shape} for an image, "
                "but an exit needs one score for each class; use a task of one class per image"
            )
        self.outputs = shape[0]

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """Choices of the networks, then those of the exit."""
        shares = self.config.shares
        some = tuple(share for share in shares if share)
        when = None if len(some) == len(shares) else ChoiceCondition(_SHARE, some)
        own = Choice(_SHARE, shares), Choice(_AFTER, tuple(self.places), when)
        return *self.networks.choices, *own

    @property
    def identity(self) -> Mapping[str, Any]:
        """Fingerprint of the space of the networks; the choices tell the rest."""
        return {"networks": self.networks.fingerprint}

    def without_exit(self, architecture: Architecture) -> Architecture:
        """Return the network without its exit, as one of the other space."""
        values = dict(self.check(architecture).values)
        own = {c.name: values[c.name] for c in self.networks.choices if c.name in values}
        return self.networks.architecture(own)

    def build(self, architecture: Architecture) -> EarlyExitNetwork:
        """Return the network: float32 (N, *input_shape) -> (N, outputs)."""
        network = self.networks.build(self.without_exit(architecture))
        values = self.values(architecture)
        return EarlyExitNetwork(network, self._exit.module(self._exit.key(values)))

    def shared_network(self) -> EarlyExitNetwork:
        """Return the shared network of the other space, with the heads of all exits."""
        largest = self.networks.largest()
        values = self.networks.values(largest)
        heads = nn.ModuleDict()
        for place in self.places.values():
            block = place.block(values)
            width = self._widths.of(largest, block, values)
            own = exit_heads(self.outputs, place.name, block.name, width, 1.0)
            heads.update(dict(own.items()))
        return EarlyExitNetwork(self.networks.shared_network(), heads)

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Specifications of the blocks of the other space, and of the exit."""
        blocks = (
            dataclasses.replace(block, name=_NETWORK + block.name)
            for block in self.networks.block_specs
        )
        return *blocks, self._exit

    @cached_property
    def _exit(self) -> BlockSpec:
        decided_by = {name: f"exit.{name}" for name in ("place", "block", "channels", "share")}
        return BlockSpec("exit", partial(exit_heads, self.outputs), decided_by)

    def values(self, architecture: Architecture) -> Mapping[str, Any]:
        """Return the values of the network without an exit, and those of the exit."""
        own, chosen = self.without_exit(architecture), dict(architecture.values)
        values = self.networks.values(own)
        found = {"place": "", "block": "", "channels": 0, "share": 0.0}
        if chosen[_SHARE]:
            place = self.places[str(chosen[_AFTER])]
            block = place.block(values)
            width = self._widths.of(own, block, values)
            found = {"place": place.name, "block": block.name, "channels": width}
            found["share"] = float(chosen[_SHARE])
        return {**values, **chosen, **{f"exit.{name}": value for name, value in found.items()}}

    @cached_property
    def _widths(self) -> BlockWidths:
        return BlockWidths(self.networks)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the widths, which another process finds again."""
        return {name: value for name, value in vars(self).items() if name != "_widths"}

    def segments(self, architecture: Architecture) -> Mapping[str, Segments]:
        """See `SearchSpace.segments`."""
        found = self.networks.segments(self.without_exit(architecture))
        return {_NETWORK + name: pieces for name, pieces in found.items()}

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return channels, height and width of one input image."""
        return self.networks.input_shape(self.without_exit(architecture))

    def outline(self, architecture: Architecture) -> tuple[StageOutline, ...]:
        """Return the stages of the network without its exit."""
        return self.networks.outline(self.without_exit(architecture))

    def teacher(self) -> nn.Module | None:
        """Return the trained network without an exit that the weights come from, if any."""
        return self.networks.teacher()

    def workload(self, architecture: Architecture, batch: int = 1) -> Workload:
        """Return the workload of the whole network, with that of an image that leaves early."""
        with blueprint():
            network = self.build(architecture)
            merged_branches(network.network)
        return early_exit_workload(network, self.input_shape(architecture), batch)


def early_exit(
    image_shape: tuple[int, int, int],
    outputs: int,
    network: Mapping[str, Any] | None = None,
    exit_share: tuple[float, ...] = (0, 0.3, 0.5, 0.7),
    places: int = 3,
    folder: Path = Path(),
    maps: bool = False,
) -> EarlyExitSpace:
    """Return the space of a recipe's ``[space] name = "early-exit"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Number of classes.
        network: Table of the space of the networks, like ``[space]`` itself; MobileNets if None.
        exit_share: Options for the share of images that leave at the exit, from 0 (no exit) up to
            below 1.
        places: Largest number of places for the exit: ends of stages or, in networks of one row,
            blocks.
        folder: Folder that relative paths start from.
        maps: Whether the networks have to give maps, which exits do not.

    Raises:
        ConfigError: A name or an option is unknown or out of range, or the networks give maps.
    """
    if maps:
        raise ConfigError(
            "space early-exit is for tasks of one class per image, but this task needs a value for "
            "each pixel; name the space of [space.network] in [space] itself"
        )
    config = EarlyExitConfig(tuple(exit_share), places)
    options = dict(network or {})
    name = str(options.pop("name", "mobilenet"))
    space = named_space(name, image_shape, outputs, options, folder, "space.network")
    return EarlyExitSpace(space, config)


PLUGINS = (
    SpacePlugin(
        "space",
        "early-exit",
        early_exit,
        "Networks of another space, with an exit for easy images (BranchyNet)",
        examples={"": SMALL},
    ),
)
