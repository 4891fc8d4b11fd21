"""Block specifications: where blocks are in the networks of a space, and how they are made.

The kinds of blocks belong to the families, such as `hwnas.search_spaces.mobilenet.network`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from hwnas.search_spaces.layers.candidate_operators import CandidateOperators

__all__ = ["BlockSpec", "Key", "Values"]

Values = Mapping[str, Any]
"""Option of every choice, None if the choice has no effect, and values derived from the options."""

Key = tuple[Any, ...]
"""Values that a module depends on; hashable."""


@dataclass(frozen=True)
class BlockSpec:
    """Specification of a block: its place in the networks of a space, and how to make its module.

    Attributes:
        name: Name of the submodule, e.g. ``"stages.0.1"``.
        make: Function that returns the module, freshly initialised; its only arguments are those of
            ``decided_by``.
        decided_by: Name of the value for each argument of ``make``.
        depth: Name of the value that gives the number of blocks in the row; empty if the block is
            always present.
        position: Smallest depth at which the block is present.
        operator: Argument of ``make`` that selects among operators with weights of their own, whose
            names are its values; empty if the weights of every variant are part of those of the
            largest.
        operators: Values of that argument.
        partial_channels: Whether these operators keep the shape of their input and ``make`` takes a
            ``divisor``, with which they work on one of so many parts of the channels.
    """

    name: str
    make: Callable[..., nn.Module]
    decided_by: Mapping[str, str] = field(default_factory=dict)
    depth: str = ""
    position: int = 1
    operator: str = ""
    operators: tuple[str, ...] = ()
    partial_channels: bool = False

    def taken(self, values: Values) -> bool:
        """Return whether the block is present in the network of these values."""
        return not self.depth or bool(values[self.depth] >= self.position)

    def key(self, values: Values) -> Key:
        """Return the values that the module depends on; equal keys give equal modules."""
        return tuple([values[name] for name in self.decided_by.values()])

    def module(self, key: Key) -> nn.Module:
        """Return the module of a key, freshly initialised."""
        arguments = dict(zip(self.decided_by, key, strict=True))
        made = self.make(**arguments)
        return CandidateOperators({arguments[self.operator]: made}) if self.operator else made

    def with_all_operators(self) -> BlockSpec:
        """Return the specification of a block with all operators, which no choice selects among."""
        if not self.operator:
            return self
        decided_by = {k: v for k, v in self.decided_by.items() if k != self.operator}
        make = partial(_all_operators, self.make, self.operator, self.operators)
        return replace(self, make=make, decided_by=decided_by, operator="", operators=())


def _all_operators(
    make: Callable[..., nn.Module], operator: str, operators: tuple[str, ...], **arguments: Any
) -> CandidateOperators:
    return CandidateOperators({name: make(**arguments, **{operator: name}) for name in operators})
