"""Real-valued populations in a box.

Simulated binary crossover: Deb and Agrawal, "Simulated Binary Crossover for Continuous Search
Space", Complex Systems 1995, with the step of the unbounded case, cut off at the box. Polynomial
mutation: Deb and Deb, "Analysing Mutation Schemes for Real-Parameter Genetic Algorithms", 2014,
whose step minds the bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hwnas.errors import ConfigError

__all__ = ["Box", "RealGenes", "polynomial_step", "simulated_binary_step"]


@dataclass(frozen=True)
class Box:
    """All points between two corners.

    Attributes:
        low: The smallest value of each variable.
        high: The largest, above the smallest.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high):
            raise ConfigError(
                f"a box has {len(self.low)} lower and {len(self.high)} upper bounds; expected as "
                "many, at least 1"
            )
        for i, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not -math.inf < low < high < math.inf:
                raise ConfigError(f"variable {i} of a box goes from {low} to {high}; expected less")

    @classmethod
    def cube(cls, variables: int, low: float = 0.0, high: float = 1.0) -> Box:
        """The same bounds for every variable."""
        return cls((low,) * variables, (high,) * variables)


class RealGenes:
    """Variation of float32 populations; inside, all variables are scaled to [0, 1].

    Args:
        box: Where they live.
        generator: Source of randomness; its device is that of the population.
        crossover: Share of couples that mix.
        crossover_index: Large for children near their parents.
        mutation_index: Large for small mutations.
    """

    def __init__(
        self,
        box: Box,
        generator: torch.Generator,
        *,
        crossover: float = 0.9,
        crossover_index: float = 15.0,
        mutation_index: float = 20.0,
    ) -> None:
        self._generator = generator
        self._device = generator.device
        self._low = torch.tensor(box.low, device=self._device)
        self._high = torch.tensor(box.high, device=self._device)
        self._width = self._high - self._low
        self._crossover = crossover
        self._crossover_index = crossover_index
        self._mutation_index = mutation_index

    def everything(self, most: int) -> None:
        """None: a box holds infinitely many points."""

    def complete(self, population: int, initial: Tensor | None) -> Tensor:
        """The given points, then uniform ones."""
        known = self._low.new_empty((0, len(self._low))) if initial is None else initial
        known = known.to(self._device, torch.float32)
        if known.ndim != 2 or known.shape[1] != len(self._low):
            raise ConfigError(
                f"initial has shape {tuple(known.shape)}; expected (N, {len(self._low)})"
            )
        if not bool(((known >= self._low) & (known <= self._high)).all()):
            raise ConfigError("initial holds points outside of the box")
        drawn = self._uniform(population - len(known), len(self._low))
        return torch.cat([known, drawn.mul_(self._width).add_(self._low)])

    def children(
        self, first: Tensor, second: Tensor, count: int, parents: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Simulated binary crossover, then polynomial mutation of at least one variable each.

        Without that, a couple that does not mix could have children who are their parents.
        """
        step = simulated_binary_step(self._uniform(*first.shape), self._crossover_index)
        step *= self._uniform(len(first), 1) < self._crossover
        step *= second - first
        if count > len(first):
            second = second[: count - len(first)] - step[: count - len(first)]
            young = torch.cat([first + step, second])
        else:
            young = first[:count] + step[:count]
        self._mutate(young)
        young = torch.minimum(torch.maximum(young, self._low), self._high)
        return young, torch.ones(len(young), dtype=torch.bool, device=self._device)

    def _mutate(self, young: Tensor) -> None:
        """In place: each variable with the probability 1 / variables."""
        mutated = self._uniform(*young.shape) < 1 / young.shape[1]
        spared = torch.nonzero(~mutated.any(1))[:, 0]
        mutated[spared, self._integers(young.shape[1], len(spared))] = True
        rows, columns = torch.nonzero(mutated, as_tuple=True)
        low, width = self._low[columns], self._width[columns]
        place = ((young[rows, columns] - low) / width).clamp_(0, 1)
        step = polynomial_step(place, self._uniform(len(rows)), self._mutation_index)
        young[rows, columns] = low + width * (place + step)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator, device=self._device)

    def _integers(self, below: int, count: int) -> Tensor:
        return torch.randint(below, (count,), generator=self._generator, device=self._device)


def simulated_binary_step(uniform: Tensor, index: float) -> Tensor:
    """How far children move from one parent towards the other, as a share of the way.

    One number decides all: its lower half leaves a variable as it is, the next quarter mixes, the
    last mixes and swaps.

    Args:
        uniform: Of [0, 1).
        index: Large for small steps.

    Returns:
        The first child is ``first + step * (second - first)``, the second
        ``second - step * (second - first)``. Same shape as ``uniform``.
    """
    quarter = uniform * 4
    swapped = quarter >= 3
    u = quarter.frac()
    beta = torch.where(u <= 0.5, 2 * u, 0.5 / (1 - u)).pow_(1 / (index + 1))
    beta = torch.where(swapped, -beta, beta)
    return beta.neg_().add_(1).mul_(0.5).mul_(uniform >= 0.5)


def polynomial_step(place: Tensor, uniform: Tensor, index: float) -> Tensor:
    """A mutation's step, which stays in [0, 1].

    Args:
        place: Where the variable is, in [0, 1].
        uniform: Of [0, 1), same shape.
        index: Large for small steps.
    """
    down = uniform < 0.5
    share = torch.where(down, 2 * uniform, 2 * (1 - uniform))
    room = torch.where(down, 1 - place, place)
    step = (share + (1 - share) * room.pow(index + 1)).pow(1 / (index + 1)) - 1
    return torch.where(down, step, -step)
