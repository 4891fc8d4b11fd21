"""Populations of distinct codes; a code is a row of option indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hwnas.errors import ConfigError
from hwnas.search.evolution.chance import happening, rows_without
from hwnas.search.evolution.ordering import first_of_equals

__all__ = ["Canonical", "CodeGenes"]

Canonical = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
"""Function from codes, (N, positions), to the canonical code of each network, same shape."""

_DRAWS = 30  # attempts to draw the missing individuals of the first population
_REPAIRS = 4  # attempts to replace a child that is not new; the last one draws it at random


class CodeGenes:
    """Initialisation and variation of int64 populations.

    Args:
        options: Number of options of each position.
        generator: Source of randomness; its device is that of the population.
        canonical: Function that maps equal networks to equal codes; None if all codes are different
            networks.
        size: Number of different networks, if known.
        crossover: Probability of crossover of a couple.
    """

    def __init__(
        self,
        options: Sequence[int],
        generator: torch.Generator,
        canonical: Canonical | None = None,
        size: int | None = None,
        *,
        crossover: float = 0.9,
    ) -> None:
        self._generator = generator
        self._device = generator.device
        self._options = torch.tensor(options, device=self._device)
        self._size = math.prod(options) if size is None else size
        self._free = torch.nonzero(self._options > 1)[:, 0]
        self._canonical = canonical
        self._crossover = crossover
        self._multipliers = _multipliers(options).to(self._device)

    def everything(self, most: int) -> Tensor | None:
        """Return every network once, or None if there are more than ``most``."""
        if self._size > most:
            return None
        codes = torch.zeros_like(self._options)[None]
        for position, number in enumerate(self._options.tolist()):
            codes = codes.repeat_interleave(number, 0)
            codes[:, position] = torch.arange(len(codes), device=self._device) % number
            codes = self._distinct(codes)  # bounds the memory by the number of networks
        return codes

    def complete(self, population: int, initial: Tensor | None) -> Tensor:
        """Return the given codes, followed by random ones; all are different."""
        known = self._options.new_empty((0, len(self._options)))
        if initial is not None:
            known = self._distinct(self._checked(initial))
        listed = self.everything(4 * population)  # draws from a small space repeat often
        if listed is not None:
            order = torch.randperm(len(listed), generator=self._generator, device=self._device)
            return self._distinct(torch.cat([known, listed[order]]), False)[:population]
        for _ in range(_DRAWS):
            if len(known) >= population:
                break
            drawn = self._canonically(self._random(population - len(known)))
            known = self._distinct(torch.cat([known, drawn]), False)
        return known[:population]

    def children(
        self, first: Tensor, second: Tensor, count: int, parents: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Apply uniform crossover, then mutation; a child that is not new is mutated again.

        A child that is still not new is masked out. This may happen if nearly all networks are in
        the population.
        """
        mixes = self._uniform(len(first), 1) < self._crossover
        swap = (self._uniform(*first.shape) < 0.5).logical_and_(mixes)
        young = torch.where(swap, second, first)
        if count > len(first):
            young = torch.cat([young, torch.where(swap, first, second)])
        young = self._canonically(self._mutated(young[:count], forced=False))
        known, own = self._keys(parents), self._keys(young)
        for repair in range(_REPAIRS + 1):
            new = first_of_equals(torch.cat([known, own]))[len(known) :]
            old = torch.nonzero(~new)[:, 0]
            if not len(old) or repair == _REPAIRS:
                break
            drawn_anew = repair == _REPAIRS - 1
            again = self._random(len(old)) if drawn_anew else self._mutated(young[old], forced=True)
            young[old] = again = self._canonically(again)
            own[old] = self._keys(again)
        return young, new

    def _mutated(self, young: Tensor, *, forced: bool) -> Tensor:
        """Change each position with probability 1 / free positions to another of its options.

        Args:
            young: Children, (N, positions).
            forced: If True, at least one position of each child changes.
        """
        count, positions = young.shape
        mutated = happening(young.numel(), 1 / len(self._free), self._generator)
        rows, columns = mutated // positions, mutated % positions
        if forced:
            spared = rows_without(mutated, count, positions)
            chosen = (self._uniform(len(spared)) * len(self._free)).long()
            rows = torch.cat([rows, spared])
            columns = torch.cat([columns, self._free[chosen.clamp_(max=len(self._free) - 1)]])
        others = self._options[columns] - 1
        step = 1 + (self._uniform(len(rows)) * others).long().clamp_(max=others - 1)
        step = torch.where(others > 0, step, 0)
        young = young.clone()
        young[rows, columns] = (young[rows, columns] + step) % self._options[columns]
        return young

    def _random(self, count: int) -> Tensor:
        drawn = self._uniform(count, len(self._options)) * self._options
        return torch.minimum(drawn.long(), self._options - 1)

    def _canonically(self, codes: Tensor) -> Tensor:
        if self._canonical is None:
            return codes
        found = np.asarray(self._canonical(codes.cpu().numpy()), np.int64)
        return torch.from_numpy(found).to(self._device)

    def _distinct(self, codes: Tensor, canonically: bool = True) -> Tensor:
        codes = self._canonically(codes) if canonically else codes
        return codes[first_of_equals(self._keys(codes))]

    def _keys(self, codes: Tensor) -> Tensor:
        return (codes * self._multipliers).sum(1)

    def _checked(self, codes: Tensor) -> Tensor:
        if codes.ndim != 2 or codes.shape[1] != len(self._options):
            raise ConfigError(
                f"initial has shape {tuple(codes.shape)}; expected (N, {len(self._options)})"
            )
        whole = codes.to(self._device, torch.int64)
        if not bool(((whole >= 0) & (whole < self._options)).all()):
            raise ConfigError("initial holds codes outside of the space")
        return whole

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator, device=self._device)


def _multipliers(options: Sequence[int]) -> Tensor:
    """Return multipliers that sum a code to its index in the space, or to a hash in a large space.

    The probability that two different codes among a million have the same hash is 3e-8.
    """
    if math.prod(options) < 2**63:
        return torch.tensor([math.prod(options[i + 1 :]) for i in range(len(options))])
    drawn = np.random.default_rng(0).integers(-(2**63), 2**63, len(options)) | 1
    return torch.from_numpy(drawn)
