"""Spaces whose networks are one frame with blocks in it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from itertools import count, takewhile

from torch import nn

from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.places import Place
from hwnas.search_spaces.space import SearchSpace

__all__ = ["BlockSpace", "row", "rows"]


class BlockSpace(SearchSpace):
    """A space that says what stands where, and what is around it.

    `build` puts blocks into the frame, and so does a supernet, which keeps one of each
    (`hwnas.search_spaces.skeletons`). So the two cannot disagree about a block.
    """

    @property
    @abstractmethod
    def places(self) -> tuple[Place, ...]:
        """Of all blocks of the largest network, in the order in which they are made."""

    @abstractmethod
    def frame(self, blocks: Mapping[str, nn.Module]) -> nn.Module:
        """A network of these blocks, by place; it has no tensors but theirs."""

    def build(self, architecture: Architecture) -> nn.Module:
        """A plain, freshly initialised module: float32 (N, *input_shape) -> (N, outputs)."""
        values = self.values(self.check(architecture))
        return self.frame(
            {each.name: each.module(each.key(values)) for each in self.places if each.taken(values)}
        )


def rows(blocks: Mapping[str, nn.Module], name: str) -> list[nn.Sequential]:
    """The blocks ``"<name>.0.0"``, ``"<name>.0.1"``, ..., ``"<name>.1.0"``, ... row by row."""
    return list(
        takewhile(len, (nn.Sequential(*row(blocks, f"{name}.{index}")) for index in count()))
    )


def row(blocks: Mapping[str, nn.Module], name: str) -> list[nn.Module]:
    """The blocks ``"<name>.0"``, ``"<name>.1"``, ..."""
    places = (f"{name}.{index}" for index in count())
    return [blocks[place] for place in takewhile(blocks.__contains__, places)]
