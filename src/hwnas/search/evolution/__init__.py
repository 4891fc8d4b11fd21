"""Tensorised evolution of populations of thousands to millions of individuals."""

from hwnas.search.evolution.algorithm import ALGORITHMS
from hwnas.search.evolution.benchmark import EvolveRow, bench_evolve
from hwnas.search.evolution.box import Box
from hwnas.search.evolution.loop import evolve
from hwnas.search.evolution.result import EvolutionResult

__all__ = ["ALGORITHMS", "Box", "EvolutionResult", "EvolveRow", "bench_evolve", "evolve"]
