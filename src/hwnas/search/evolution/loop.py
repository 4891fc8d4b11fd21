"""Evolution loop over large populations as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy.typing as npt
import torch
from torch import Tensor

from hwnas.errors import ConfigError, DeviceError
from hwnas.plugin import closest
from hwnas.search.engine.threads import has_one_thread, one_thread
from hwnas.search.evolution.algorithm import ALGORITHMS, REAL_VARIATION, Algorithm
from hwnas.search.evolution.box import Box, RealGenes
from hwnas.search.evolution.codes import Canonical, CodeGenes
from hwnas.search.evolution.genes import Genes
from hwnas.search.evolution.result import EvolutionResult, result_of
from hwnas.search.evolution.scores import Score, Scores, checked_scores
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.tabular import TabularSpace

__all__ = ["OnGeneration", "evolve", "usable_device"]

OnGeneration = Callable[[int, Tensor, Tensor], None]
"""Callback with the number of a generation, from 1, its population and its losses."""

_LEAST = 4


def evolve(
    space: SearchSpace | TabularSpace | Sequence[int] | Box,
    score: Score,
    population: int = 100_000,
    generations: int = 20,
    algorithm: str = "nsga2",
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    initial: npt.ArrayLike | Tensor | None = None,
    canonical: Canonical | None = None,
    on_generation: OnGeneration | None = None,
) -> EvolutionResult:
    """Find the front of any function that scores many candidates at once.

    The loop follows EvoMO (Liang et al., "Bridging Evolutionary Multiobjective Optimization and GPU
    Acceleration via Tensorization", 2025): selection, crossover and mutation are tensor operations
    on the whole population. All codes of a population are different, except with ``"moead"``, where
    one code may be the best for several problems. A space that is no larger than the population is
    scored as a whole.

    Args:
        space: Search space, box, or number of options of each position of the codes. Codes of a
            `SearchSpace` are canonical.
        score: Function that is called with a population on ``device``: int64 codes, (N, positions),
            or float32 points of a box. It returns losses, (N, objectives), smaller is better, or a
            pair of losses and constraint violations, (N,) or (N, constraints), positive where
            violated; NumPy or torch. Feasible candidates rank before all others.
        population: Number of individuals in a generation, at least 4.
        generations: Number of generations that are scored; the first one is random.
        algorithm: ``"nsga2"``, ``"nsga3"``, ``"moead"`` or ``"hype"``.
        seed: Seed of the random numbers; the same seed gives the same result on the same device.
        device: ``"cpu"`` or ``"cuda"``.
        initial: Individuals of the first generation, (K, variables), with K at most ``population``;
            the others are random.
        canonical: Function that maps equal networks to equal codes, where a tabular space needs it.
        on_generation: Function that is called after every generation; see `OnGeneration`.

    Raises:
        ConfigError: An argument is out of range, or the score function gives wrong shapes.
        DataError: The score function gives losses that are not finite.
        DeviceError: There is no such device.
    """
    _check("population", population, _LEAST)
    _check("generations", generations, 1)
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm {algorithm!r}; {closest(algorithm, ALGORITHMS)}")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed is {seed}; expected 0 to 2**63 - 1")
    generator = torch.Generator(usable_device(device)).manual_seed(seed)
    genes = _genes(space, generator, canonical, algorithm)
    known = None if initial is None else torch.as_tensor(initial)
    if known is not None and len(known) > population:
        raise ConfigError(
            f"initial has {len(known)} individuals; expected at most population, {population}"
        )
    individuals = genes.everything(population)
    if individuals is not None:
        generations = 1
    else:
        individuals = genes.complete(population, known)
    scores = _scored(score, individuals)
    evaluations = len(individuals)
    report = on_generation or (lambda number, individuals, losses: None)
    report(1, individuals, scores.losses)
    selection = ALGORITHMS[algorithm](scores, generator)
    limited = nullcontext if has_one_thread() else one_thread  # limiting takes 5 % of the time
    for number in range(2, generations + 1):
        individuals, scores, born = _next(genes, selection, score, individuals, scores, limited)
        evaluations += born
        report(number, individuals, scores.losses)
    return result_of(individuals.cpu().numpy(), scores, evaluations)


def _next(
    genes: Genes,
    algorithm: Algorithm,
    score: Score,
    individuals: Tensor,
    scores: Scores,
    limited: Callable[[], AbstractContextManager[None]],
) -> tuple[Tensor, Scores, int]:
    """Return the next generation, its scores, and the number of children that were scored."""
    with limited():
        first, second = (individuals[places] for places in algorithm.mates())
        young, new = genes.children(first, second, len(individuals), individuals)
    born = int(new.sum())
    if not born:
        return individuals, scores, 0
    all_live = born == len(new)
    scored = _scored(score, young if all_live else young[new])
    with limited():
        both = scores.followed_by(scored if all_live else scored.spread(new))
        kept = algorithm.survive(both)
        return torch.cat([individuals, young])[kept], both.take(kept), born


def _scored(score: Score, individuals: Tensor) -> Scores:
    return checked_scores(score(individuals), len(individuals), individuals.device)


def _genes(
    space: SearchSpace | TabularSpace | Sequence[int] | Box,
    generator: torch.Generator,
    canonical: Canonical | None,
    algorithm: str,
) -> Genes:
    if isinstance(space, Box):
        return RealGenes(space, generator, **REAL_VARIATION.get(algorithm, {}))
    if isinstance(space, SearchSpace):
        sizes = [len(choice.options) for choice in space.choices]
        return CodeGenes(sizes, generator, canonical or space.canonical, space.size())
    options = space if isinstance(space, Sequence) else space.options
    return CodeGenes(options, generator, canonical)


def usable_device(name: str | torch.device) -> torch.device:
    """Return the torch device of this name.

    Raises:
        DeviceError: The device is neither a CPU nor CUDA, or it is not on this machine.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise DeviceError(f"unknown device {str(name)!r}; expected cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"{device} cannot be used: torch finds {torch.cuda.device_count()} CUDA devices here; "
            "use cpu"
        )
    return device


def _check(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} is {value}; expected at least {least}")
