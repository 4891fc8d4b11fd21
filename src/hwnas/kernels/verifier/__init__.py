"""A verifier of kernels that cannot be cheated, and what it says.

After robust-kbench (Lange et al., "Towards Robust Agentic CUDA Kernel Benchmarking, Verification,
and Optimization", 2025). The kernel's process gets inputs and gives outputs, and knows nothing
else; all that is judged is judged elsewhere.
"""

from hwnas.kernels.verifier.nursery import Limits, Nursery
from hwnas.kernels.verifier.verdict import Check, Verdict
from hwnas.kernels.verifier.verification import verify

__all__ = ["Check", "Limits", "Nursery", "Verdict", "verify"]
