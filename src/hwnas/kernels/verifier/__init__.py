"""Verifier of kernels that cannot be cheated, and its verdict.

The method follows robust-kbench (Lange et al., "Towards Robust Agentic CUDA Kernel Benchmarking,
Verification, and Optimization", 2025). The kernel's process receives inputs, returns outputs and
knows nothing else. Another process judges the outputs.
"""

from hwnas.kernels.verifier.fork_server import ForkServer, JobLimits
from hwnas.kernels.verifier.verdict import KernelCheck, KernelVerdict
from hwnas.kernels.verifier.verification import verify

__all__ = ["ForkServer", "JobLimits", "KernelCheck", "KernelVerdict", "verify"]
