"""Choice of the update scheme with the largest contribution within a memory limit.

The memory of a scheme is not a sum over layers: what is kept for the backward pass depends on the
first trained layer, and layers share what they read. So the choice is searched by evolution, as in
Lin et al. (NeurIPS 2022, section 3.2), with the memory of every scheme predicted from its program.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

from hwnas.deploy.finetuning.contribution import Contributions
from hwnas.deploy.finetuning.layers import SHARES, TrainableLayer
from hwnas.deploy.finetuning.scheme import LayerUpdate, UpdateScheme
from hwnas.errors import InfeasibleError

__all__ = ["check_limit", "chosen_scheme", "scheme_options"]

_POPULATION = 24
_GENERATIONS = 40
_MUTATIONS = 2  # on average, of a child
_FROZEN = LayerUpdate(0.0, bias=False)

Genes = tuple[int, ...]
"""Number of the update of each layer among its options."""


def scheme_options(layer: TrainableLayer) -> tuple[LayerUpdate, ...]:
    """Return the updates that a layer may have, from none to all of it."""
    widths: dict[int, float] = {}
    for share in reversed(SHARES):  # of shares with as many channels, the largest
        widths.setdefault(layer.width(share), share)
    shares = sorted(widths.values())
    bias = (LayerUpdate(),) if layer.bias is not None else ()
    return (_FROZEN, *bias, *(LayerUpdate(share, layer.bias is not None) for share in shares))


def chosen_scheme(
    layers: Sequence[TrainableLayer],
    contributions: Contributions,
    total_bytes: Callable[[UpdateScheme], int],
    limit_bytes: int,
    seed: int = 0,
) -> UpdateScheme:
    """Return the scheme with the largest contribution among those that were found within a limit.

    Args:
        layers: Layers of the network.
        contributions: Contribution of each layer.
        total_bytes: Function that predicts the memory of a scheme in bytes.
        limit_bytes: Most memory of a scheme in bytes.
        seed: Seed of the search.

    Raises:
        InfeasibleError: See `check_limit`.
    """
    check_limit(layers, total_bytes, limit_bytes)
    search = _Search(layers, contributions, total_bytes, limit_bytes, random.Random(seed))
    return search.scheme(search.run())


def check_limit(
    layers: Sequence[TrainableLayer],
    total_bytes: Callable[[UpdateScheme], int],
    limit_bytes: int,
) -> None:
    """Raise unless the bias, or the smallest part of the weight, of one layer can be trained.

    Args:
        layers: Layers of the network.
        total_bytes: Function that predicts the memory of a scheme in bytes.
        limit_bytes: Most memory of a scheme in bytes.

    Raises:
        InfeasibleError: No layer can be trained; the message says which limit is the least.
    """
    schemes = (UpdateScheme({layer.name: scheme_options(layer)[1]}) for layer in layers)
    least = min(map(total_bytes, schemes))
    if least > limit_bytes:
        raise InfeasibleError(
            f"a memory of {limit_bytes:,} bytes is too little to train anything; the least is "
            f"{least:,} bytes. Give more memory or a smaller batch"
        )


class _Search:
    """Evolution of schemes, all of which keep the limit."""

    def __init__(
        self,
        layers: Sequence[TrainableLayer],
        contributions: Contributions,
        total_bytes: Callable[[UpdateScheme], int],
        limit_bytes: int,
        rng: random.Random,
    ) -> None:
        self._layers, self._rng, self._limit = layers, rng, limit_bytes
        self._options = [scheme_options(layer) for layer in layers]
        self._values = [
            [contributions.layers[layer.name].of(update) for update in options]
            for layer, options in zip(layers, self._options, strict=True)
        ]
        self._bytes = cache(lambda genes: total_bytes(self.scheme(genes)))

    def scheme(self, genes: Genes) -> UpdateScheme:
        """Return the scheme of genes."""
        chosen = (options[gene] for options, gene in zip(self._options, genes, strict=True))
        pairs = zip(self._layers, chosen, strict=True)
        return UpdateScheme({layer.name: each for layer, each in pairs if each != _FROZEN})

    def run(self) -> Genes:
        """Return the best genes."""
        nothing = (0,) * len(self._layers)
        moves = [(i, gene) for i, each in enumerate(self._options) for gene in range(1, len(each))]
        costs = {move: self._bytes(_moved(nothing, *move)) for move in moves}
        least = min(costs.values())
        by_gain = sorted(moves, key=lambda move: -self._values[move[0]][move[1]])
        by_ratio = sorted(moves, key=lambda m: -self._values[m[0]][m[1]] / (1 + costs[m] - least))
        alone = [_moved(nothing, *move) for move in moves if costs[move] <= self._limit]
        population = [self._greedy(by_gain), self._greedy(by_ratio), *alone]
        for _ in range(_GENERATIONS):
            population = self._best(population)
            children = [self._child(population) for _ in range(_POPULATION)]
            population += [child for child in children if self._fits(child)]
        return self._climbed(self._best(population)[0])

    def _greedy(self, moves: Sequence[tuple[int, int]]) -> Genes:
        """Return genes that are changed by moves in order, if they gain and fit."""
        genes: Genes = (0,) * len(self._layers)
        for layer, gene in moves:
            values = self._values[layer]
            if values[gene] > values[genes[layer]]:
                changed = _moved(genes, layer, gene)
                genes = changed if self._fits(changed) else genes
        return genes

    def _climbed(self, genes: Genes) -> Genes:
        """Return genes that no change of one layer improves any more."""
        for _ in range(len(genes)):
            found = [genes]
            for layer, options in enumerate(self._options):
                found += [_moved(genes, layer, gene) for gene in range(len(options))]
            best = max((g for g in found if g == genes or self._better(g, genes)), key=self._value)
            if best == genes:
                return genes
            genes = best
        return genes

    def _better(self, genes: Genes, than: Genes) -> bool:
        return self._value(genes) > self._value(than) and self._fits(genes)

    def _fits(self, genes: Genes) -> bool:
        return any(genes) and self._bytes(genes) <= self._limit

    def _value(self, genes: Genes) -> float:
        return sum(values[gene] for values, gene in zip(self._values, genes, strict=True))

    def _best(self, population: Sequence[Genes]) -> list[Genes]:
        """Return the best schemes, each once."""
        each = dict.fromkeys(genes for genes in population if any(genes))
        return sorted(each, key=lambda genes: (-self._value(genes), genes))[:_POPULATION]

    def _child(self, population: Sequence[Genes]) -> Genes:
        one, two = (self._rng.choice(population) for _ in range(2))
        mixed = [self._rng.choice(pair) for pair in zip(one, two, strict=True)]
        for layer, options in enumerate(self._options):
            if self._rng.random() < _MUTATIONS / len(self._layers):
                mixed[layer] = self._rng.randrange(len(options))
        return tuple(mixed)


def _moved(genes: Genes, layer: int, gene: int) -> Genes:
    return (*genes[:layer], gene, *genes[layer + 1 :])
