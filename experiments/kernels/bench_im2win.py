"""Dense convolution by im2win, at the sizes and against the rival of the one by implicit GEMM."""

from __future__ import annotations

from experiments.kernels.bench_convolution import RIVAL
from experiments.kernels.benchmark import Benchmark
from hwnas.kernels.im2win import im2win

__all__ = ["BENCHMARK"]

BENCHMARK = Benchmark(im2win, (RIVAL,))
