"""Relaxed spaces: networks in which all candidate operators stand side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any

from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.layers.candidate_operators import CandidateOperators
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.choices import Choice
from hwnas.search_spaces.supernet.block_space import BlockSpace
from hwnas.search_spaces.supernet.block_specs import BlockSpec

__all__ = ["RelaxedSpace", "operator_choices"]


def operator_choices(space: Any) -> dict[str, Choice]:
    """Return the choices that select among operators with weights of their own, by name."""
    deciding = {block.decided_by[block.operator] for block in space.block_specs if block.operator}
    return {choice.name: choice for choice in space.choices if choice.name in deciding}


class RelaxedSpace(BlockSpace):
    """Space like another one, without the choices of operators: its networks have all of them.

    A supernet of this space shares the weights of a supernet of the other. Gates on its
    `CandidateOperators` say how the operators of a block are combined.

    Args:
        space: Space with choices among operators that have weights of their own.
        divisor: Divisor of the channels that the operators work on (partial channels, PC-DARTS).

    Raises:
        ConfigError: There are no such choices, or an operator cannot work on some of the channels.
    """

    def __init__(self, space: BlockSpace, divisor: int = 1) -> None:
        self.original, self.divisor = space, divisor
        self.name = f"relaxed-{space.name}"
        self.deciding = operator_choices(space)
        if not self.deciding:
            raise ConfigError(
                f"space {space.name!r} has no choice among operators with weights of their own; "
                'set space.operator_weights = "own" in space nasbench201, or in mobilenet with '
                "operators, such as its preset fbnet"
            )
        unable = [b.name for b in space.block_specs if b.operator and not b.partial_channels]
        if divisor > 1 and unable:
            raise ConfigError(
                f"the operators of {unable[0]} in space {space.name!r} change the shape of their "
                "input, so they cannot work on a part of the channels; use space nasbench201, or "
                "another strategy"
            )

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """Choices of the other space that do not select an operator; all always have an effect."""
        return tuple(
            choice
            if choice.when is None or choice.when.name not in self.deciding
            else _free(choice)
            for choice in self.original.choices
            if choice.name not in self.deciding
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        """The other space, and the divisor."""
        return {"space": self.original.fingerprint, "divisor": self.divisor}

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Places of the other space, each with all operators."""
        return tuple(
            self._with_divisor(block).with_all_operators() for block in self.original.block_specs
        )

    def _with_divisor(self, block: BlockSpec) -> BlockSpec:
        if not block.operator or self.divisor == 1:
            return block
        return dataclasses.replace(block, make=partial(block.make, divisor=self.divisor))

    def gated(self, network: nn.Module) -> Iterator[tuple[CandidateOperators, str]]:
        """Yield the operators of each block of a network, and the choice that decides the block.

        Places with a single operator are left out.
        """
        modules = dict(network.named_modules())
        for block in self.original.block_specs:
            module = modules.get(block.name)
            if block.operator and isinstance(module, CandidateOperators):
                choice = block.decided_by[block.operator]
                if choice in self.deciding:
                    yield module, choice

    def frame(self, blocks: Mapping[str, nn.Module]) -> nn.Module:
        """See `BlockSpace.frame`."""
        return self.original.frame(blocks)

    def values(self, architecture: Architecture) -> Mapping[str, Any]:
        """Return the values of the other space, with those of its operators at the last option."""
        own = dict(architecture.values)
        others = {name: choice.options[-1] for name, choice in self.deciding.items()}
        known = {choice.name: choice.options[-1] for choice in self.original.choices}
        whole = self.original.architecture({**known, **others, **own})
        return {**self.original.values(whole), **own}

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return channels, height and width of one input image."""
        own = dict(architecture.values)
        known = {choice.name: choice.options[-1] for choice in self.original.choices}
        return self.original.input_shape(self.original.architecture({**known, **own}))


def _free(choice: Choice) -> Choice:
    """Return a choice that always has an effect."""
    return dataclasses.replace(choice, when=None)
