"""Commands on operators in Triton."""

from hwnas.cli.kernels import bench, suite, tune, verify

__all__ = ["bench", "suite", "tune", "verify"]
