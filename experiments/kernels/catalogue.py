"""All benchmarks by the names of their operators."""

from __future__ import annotations

from importlib import import_module

from experiments.kernels.benchmark import Benchmark
from hwnas.kernels.catalogue import OPERATORS

__all__ = ["BENCHMARKS"]

BENCHMARKS: dict[str, Benchmark] = {
    name: import_module(f"experiments.kernels.bench_{name}").BENCHMARK for name in OPERATORS
}
"""One file for each operator, of the same name."""
