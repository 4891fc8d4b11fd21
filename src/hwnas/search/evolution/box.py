"""Real-valued populations in a box.

Simulated binary crossover: Deb and Agrawal, "Simulated Binary Crossover for Continuous Search
Space", Complex Systems 1995. Polynomial mutation: Deb and Deb, "Analysing Mutation Schemes for
Real-Parameter Genetic Algorithms", 2014. Both are used in their bounded form, whose steps stay in
the box: clipping steps at the bounds would accumulate the population there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hwnas.errors import ConfigError
from hwnas.search.evolution.chance import happening, rows_without

__all__ = ["Box", "RealGenes", "polynomial_step", "simulated_binary"]


_CLOSE = 1e-12  # least distance of parents in a variable, against division by zero
_NEGLIGIBLE = -80.0  # logarithm of a float32 normal number that vanishes when added to 1


@dataclass(frozen=True)
class Box:
    """Axis-aligned box of real-valued points.

    Attributes:
        low: Smallest value of each variable.
        high: Largest value of each variable, above the smallest.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high):
            raise ConfigError(
                f"a box has {len(self.low)} lower and {len(self.high)} upper bounds; expected "
                "equal numbers, at least 1"
            )
        for i, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not -math.inf < low < high < math.inf:
                raise ConfigError(
                    f"variable {i} of a box goes from {low} to {high}; expected finite bounds, the "
                    "lower one first"
                )

    @classmethod
    def cube(cls, variables: int, low: float = 0.0, high: float = 1.0) -> Box:
        """Return a box with the same bounds for every variable."""
        return cls((low,) * variables, (high,) * variables)


class RealGenes:
    """Initialisation and variation of float32 populations, scaled to [0, 1] internally.

    Args:
        box: Box of the individuals.
        generator: Source of randomness; its device is that of the population.
        crossover: Probability of crossover of a couple.
        crossover_index: Distribution index of the crossover; large for children near their parents.
        mutation_index: Distribution index of the mutation; large for small mutations.
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
        """Return None, since a box has infinitely many points."""

    def complete(self, population: int, initial: Tensor | None) -> Tensor:
        """Return the given points, followed by uniformly random ones."""
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
        """Apply simulated binary crossover, then polynomial mutation; no child copies a parent."""
        uniform = self._uniform(*first.shape)
        uniform *= self._uniform(len(first), 1) < self._crossover
        couple = (first - self._low) / self._width, (second - self._low) / self._width
        young = torch.cat(simulated_binary(*couple, uniform, self._crossover_index))[:count]
        copies = torch.cat([uniform, uniform])[:count].amax(1) < 0.5  # no variable is mixed
        self._mutate(young, copies)
        young = young.clamp_(0, 1).mul_(self._width).add_(self._low)
        return young, torch.ones(len(young), dtype=torch.bool, device=self._device)

    def _mutate(self, young: Tensor, copies: Tensor) -> None:
        """Mutate each variable in place with probability 1 / variables.

        Args:
            young: Children, (N, variables), in [0, 1].
            copies: Mask of the children equal to a parent, bool (N,); at least one variable of
                each of these is mutated.
        """
        count, variables = young.shape
        mutated = happening(young.numel(), 1 / variables, self._generator)
        spared = rows_without(mutated, count, variables)
        spared = spared[copies[spared]]
        columns = (self._uniform(len(spared)) * variables).long().clamp_(max=variables - 1)
        mutated = torch.cat([mutated, spared * variables + columns])
        flat = young.view(-1)
        place = flat[mutated].clamp_(0, 1)
        step = polynomial_step(place, self._uniform(len(mutated)), self._mutation_index)
        flat[mutated] = place + step

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator, device=self._device)


def simulated_binary(
    first: Tensor, second: Tensor, uniform: Tensor, index: float
) -> tuple[Tensor, Tensor]:
    """Return two children of each couple, on average as far apart as their parents.

    One random number per variable decides: below 0.5 the variable is unchanged, below 0.75 it is
    mixed, and above that it is mixed and swapped.

    Args:
        first: Variables of the first parents, in [0, 1].
        second: Variables of the second parents, same shape.
        uniform: Random numbers in [0, 1), same shape.
        index: Distribution index; large for children near their parents.
    """
    quarter = uniform * 4
    u = quarter.frac()
    gap = second - first
    width, down = gap.abs().clamp_(min=_CLOSE), (gap <= 0).to(gap.dtype)
    near_first = (first - down).abs_().div_(width)
    near_second = down.neg_().add_(1).sub_(second).abs_().div_(width)
    step = _spread(near_first, u, index).neg_().add_(1).mul_(gap).mul_(0.5)
    back = _spread(near_second, u, index).neg_().add_(1).mul_(gap).mul_(0.5)
    swap = gap.sub_(step).sub_(back).mul_(quarter >= 3)
    mixed = quarter >= 2
    return first + step.add_(swap).mul_(mixed), second - back.add_(swap).mul_(mixed)


def _spread(room: Tensor, uniform: Tensor, index: float) -> Tensor:
    """Return the spread factor beta: the children's distance over their parents' distance.

    Args:
        room: Distance from a parent to its bound over the parents' distance; it is overwritten.
        uniform: Random numbers in [0, 1), same shape.
        index: Distribution index; large for values near 1.
    """
    # Powers are computed by logarithms and without `torch.where`, in half the time on a CPU.
    # A power below `_NEGLIGIBLE` would not change 2 - beyond, and a CPU takes ten times as long
    # for subnormal numbers.
    beyond = room.mul_(2).log1p_().mul_(-(index + 1)).clamp_(min=_NEGLIGIBLE).exp_()
    scaled = beyond.neg_().add_(2).mul_(uniform)
    sign = (scaled <= 1).to(scaled.dtype).mul_(2 / (index + 1)).sub_(1 / (index + 1))
    return scaled.sub_(1).abs_().neg_().add_(1).log_().mul_(sign).exp_()


def polynomial_step(place: Tensor, uniform: Tensor, index: float) -> Tensor:
    """Return the step of a polynomial mutation, which keeps the variable in [0, 1].

    Args:
        place: Values of the variables, in [0, 1].
        uniform: Random numbers in [0, 1), same shape.
        index: Distribution index; large for small steps.
    """
    down = uniform < 0.5
    share = torch.where(down, 2 * uniform, 2 * (1 - uniform))
    room = torch.where(down, 1 - place, place)
    step = (share + (1 - share) * room.pow(index + 1)).pow(1 / (index + 1)) - 1
    return torch.where(down, step, -step)
