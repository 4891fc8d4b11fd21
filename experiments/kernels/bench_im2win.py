"""Benchmark of convolution by im2win, with the sizes and the competitor of the implicit GEMM."""

from __future__ import annotations

from experiments.kernels.bench_convolution import RIVAL
from experiments.kernels.benchmark import Benchmark
from hwnas.kernels.operators.im2win import im2win

__all__ = ["BENCHMARK"]

BENCHMARK = Benchmark(im2win, (RIVAL,))
