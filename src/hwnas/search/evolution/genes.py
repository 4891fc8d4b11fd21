"""What evolves: how a population starts, and how it has children."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

__all__ = ["Genes"]


class Genes(Protocol):
    """Random individuals and variation, for one kind of population of shape (N, variables)."""

    def everything(self, most: int) -> Tensor | None:
        """All individuals there can be, if there are at most so many."""
        ...

    def complete(self, population: int, initial: Tensor | None) -> Tensor:
        """A first population: the given individuals, then random ones.

        Args:
            population: How many in all; fewer where so many different ones are not found.
            initial: Shape (K, variables), or None.
        """
        ...

    def children(
        self, first: Tensor, second: Tensor, count: int, parents: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Crossover and mutation of couples.

        Args:
            first: One parent of each of P couples, shape (P, variables).
            second: The other.
            count: How many children, up to 2 P: the first child of each couple, then the second.
            parents: The population, which no child should repeat.

        Returns:
            The children, (count, variables), and which of them are to live, bool (count,).
        """
        ...
