"""Places in the networks of a space after which an exit can stand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from hwnas.errors import ConfigError
from hwnas.search_spaces.early_exit.network import output_of
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.supernet.block_specs import BlockSpec, Key, Values
from hwnas.search_spaces.supernet.blueprint import blueprint

__all__ = ["BlockWidths", "ExitPlace", "exit_places"]


@dataclass(frozen=True)
class ExitPlace:
    """Place after which an exit can stand: the end of a row of blocks, or a place within it.

    Attributes:
        name: Name of the place, such as ``"stages.1"`` or ``"blocks:1/2"``.
        blocks: Specifications of the row's blocks, in order.
        share: Share of the network's blocks of this row that are before the exit, in (0, 1].
    """

    name: str
    blocks: tuple[BlockSpec, ...]
    share: Fraction = Fraction(1)

    def block(self, values: Values) -> BlockSpec:
        """Return the block whose output the exit reads, in the network of these values."""
        present = [block for block in self.blocks if block.taken(values)]
        return present[math.ceil(self.share * len(present)) - 1]


def exit_places(networks: SearchSpace, most: int) -> tuple[ExitPlace, ...]:
    """Return places that all networks of a space have, spread evenly, in the order of computation.

    If the networks have several rows of blocks, such as stages, a place is the end of a row other
    than the last. If they have one row, a place is after a share of its blocks; there are so few
    that they differ even in the shallowest network.

    Args:
        networks: Space of the networks.
        most: Largest number of places.

    Raises:
        ConfigError: There is no such place.
    """
    rows: dict[str, list[BlockSpec]] = {}
    for block in networks.block_specs:
        if block.depth:
            rows.setdefault(block.name.rpartition(".")[0], []).append(block)
    if not rows:
        raise ConfigError(
            f"space {networks.name} does not list its networks as rows of blocks, so there is no "
            "place for an exit; use mobilenet, resnet, vit, hiera, hybrid or simplenet"
        )
    smallest = networks.values(networks.smallest())
    found = _ends(rows, smallest) if len(rows) > 1 else _within(rows, smallest, most)
    if not found:
        raise ConfigError(
            f"the smallest network of space {networks.name} is a single block, so there is no "
            "place for an exit before its end; raise the smallest depth of the space"
        )
    chosen = np.linspace(0, len(found) - 1, min(most, len(found))).round().astype(int)
    return tuple(found[index] for index in chosen)


def _ends(rows: dict[str, list[BlockSpec]], smallest: Values) -> list[ExitPlace]:
    """Return the ends of all rows but the last that no network leaves out."""
    names = list(rows)[:-1]
    return [ExitPlace(name, tuple(rows[name])) for name in names if rows[name][0].taken(smallest)]


def _within(rows: dict[str, list[BlockSpec]], smallest: Values, most: int) -> list[ExitPlace]:
    """Return places within the only row, fewer than the blocks of the shallowest network."""
    [(name, row)] = rows.items()
    parts = 1 + min(most, sum(block.taken(smallest) for block in row) - 1)
    shares = [Fraction(part, parts) for part in range(1, parts)]
    return [ExitPlace(f"{name}:{share}", tuple(row), share) for share in shares]


class BlockWidths:
    """Numbers of channels that the blocks of a space's networks write.

    They are found by passing images without values through the network, once for each variant of a
    block.

    Args:
        networks: Space of the networks.
    """

    def __init__(self, networks: SearchSpace) -> None:
        self._networks = networks
        with blueprint():
            names = frozenset(networks.shared_network().state_dict())
        self._source = networks.shared_modules(names)
        self._known: dict[tuple[str, Key], int] = {}

    def of(self, architecture: Architecture, block: BlockSpec, values: Values) -> int:
        """Return the channels that a block of a network writes.

        Args:
            architecture: Network.
            block: Specification of the block, which the network has.
            values: Values of the network.

        Raises:
            ConfigError: The output of the block is neither a map nor a row of tokens.
        """
        key = block.name, block.key(values)
        if key not in self._known:
            self._known[key] = self._width(architecture, block.name)
        return self._known[key]

    def outputs(self, architecture: Architecture) -> tuple[int, ...]:
        """Return the shape of a network's output for one image, without the batch."""
        network = self._source.of(architecture).module.eval()
        return tuple(network(self._images(architecture)).shape[1:])

    def _width(self, architecture: Architecture, block: str) -> int:
        network = self._source.of(architecture).module.eval()
        with torch.no_grad(), output_of(network, block) as written:
            network(self._images(architecture))
        shape = written[0].shape
        if len(shape) not in (3, 4):
            raise ConfigError(
                f"block {block} of space {self._networks.name} writes a tensor of shape "
                f"{tuple(shape)}; an exit needs maps (N, C, H, W) or tokens (N, T, C)"
            )
        return int(shape[1] if len(shape) == 4 else shape[2])

    def _images(self, architecture: Architecture) -> torch.Tensor:
        return torch.empty(1, *self._networks.input_shape(architecture), device="meta")
