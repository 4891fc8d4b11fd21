"""Networks matched to the operators of `hwnas.kernels`: what fits is a call, the rest is PyTorch's.

Only `hwnas.deploy.runtimes.triton` and what is about that runtime imports it, and not before it is
used: it needs Triton.
"""

from hwnas.deploy.matching.choices import Decide, decided
from hwnas.deploy.matching.graph import Call, Graph
from hwnas.deploy.matching.matcher import matched
from hwnas.deploy.matching.network import MatchedNetwork, chosen_calls

__all__ = [
    "Call",
    "Decide",
    "Graph",
    "MatchedNetwork",
    "chosen_calls",
    "decided",
    "matched",
]
