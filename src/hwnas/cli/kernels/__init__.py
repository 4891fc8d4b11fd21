"""Commands on operators in Triton."""

from hwnas.cli.kernels import bench, match, suite, tune, verify

__all__ = ["bench", "match", "suite", "tune", "verify"]
