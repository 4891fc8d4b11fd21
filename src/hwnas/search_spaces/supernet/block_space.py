"""Search spaces whose networks share one frame that is filled with blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count, takewhile

from torch import nn

from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.supernet.block_specs import BlockSpec, Values

__all__ = ["BlockSpace", "row", "rows"]


class BlockSpace(SearchSpace):
    """Search space that defines its networks by a frame and the blocks in it.

    `build` inserts blocks into the frame. A supernet does the same and keeps one module for each
    variant of a block (`hwnas.search_spaces.supernet.shared_modules`), so the two cannot disagree
    about a block.
    """

    @property
    @abstractmethod
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Specifications of all blocks of the largest network, in the order of construction."""

    @property
    def summed(self) -> tuple[tuple[str, ...], ...]:
        """Groups of choices of operators whose outputs the network adds up; often none."""
        return ()

    @abstractmethod
    def frame(self, blocks: Mapping[str, nn.Module]) -> nn.Module:
        """Return a network of these blocks, which are given by name.

        The network has no tensors other than those of the blocks.
        """

    def build(self, architecture: Architecture) -> nn.Module:
        """Return a plain, freshly initialised module: float32 (N, *input_shape) -> (N, outputs)."""
        values = self.values(self.check(architecture))
        return self._network(self.block_specs, values)

    def shared_network(self) -> nn.Module:
        """Return the largest network, with all candidate operators where a choice selects one."""
        values = dict(self.values(self.largest()))
        for choice in self.choices:
            if values.get(choice.name) is None:  # has an effect with another operator only
                values[choice.name] = choice.options[-1]
        return self._network([spec.with_all_operators() for spec in self.block_specs], values)

    def _network(self, specs: Sequence[BlockSpec], values: Values) -> nn.Module:
        return self.frame(
            {each.name: each.module(each.key(values)) for each in specs if each.taken(values)}
        )


def rows(blocks: Mapping[str, nn.Module], name: str) -> list[nn.Sequential]:
    """Return each row of blocks as a sequential module, up to the first empty row.

    The blocks of the rows are ``"<name>.0.0"``, ``"<name>.0.1"``, ..., ``"<name>.1.0"``, ...
    """
    return list(
        takewhile(len, (nn.Sequential(*row(blocks, f"{name}.{index}")) for index in count()))
    )


def row(blocks: Mapping[str, nn.Module], name: str) -> list[nn.Module]:
    """Return the blocks ``"<name>.0"``, ``"<name>.1"``, ..., in this order."""
    places = (f"{name}.{index}" for index in count())
    return [blocks[place] for place in takewhile(blocks.__contains__, places)]
