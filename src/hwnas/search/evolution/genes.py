"""Protocol of initialisation, crossover and mutation of a population."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

__all__ = ["Genes"]


class Genes(Protocol):
    """Initialisation and variation of one kind of population, shape (N, variables)."""

    def everything(self, most: int) -> Tensor | None:
        """Return all possible individuals, or None if there are more than ``most``."""
        ...

    def complete(self, population: int, initial: Tensor | None) -> Tensor:
        """Return a first population: the given individuals, followed by random ones.

        Args:
            population: Number of individuals; fewer are returned if not enough different ones are
                found.
            initial: Given individuals, (K, variables), or None.
        """
        ...

    def children(
        self, first: Tensor, second: Tensor, count: int, parents: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Make children by crossover and mutation of couples.

        Args:
            first: First parents of P couples, (P, variables).
            second: Second parents, same shape.
            count: Number of children, at most 2 P: the first child of every couple, then the second
                children.
            parents: Population, which no child should repeat.

        Returns:
            Children, (count, variables), and a mask of those that are to be scored, bool (count,).
        """
        ...
