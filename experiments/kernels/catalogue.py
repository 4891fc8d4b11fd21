"""Benchmarks of all operators, by the operator's name."""

from __future__ import annotations

from importlib import import_module

from experiments.kernels.benchmark import Benchmark
from hwnas.kernels.operators.registry import OPERATORS

__all__ = ["BENCHMARKS"]

BENCHMARKS: dict[str, Benchmark] = {
    name: import_module(f"experiments.kernels.bench_{name}").BENCHMARK for name in OPERATORS
}
"""Benchmarks by operator; each is defined in a file with the operator's name."""
