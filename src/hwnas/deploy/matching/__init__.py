"""Matching of a network's nodes to operators of `hwnas.kernels`; PyTorch computes all others.

Only `hwnas.deploy.runtimes.triton` and modules that serve this runtime import this package, and
only when they use it, because it requires Triton.
"""

from hwnas.deploy.matching.choices import Decide, decided
from hwnas.deploy.matching.graph import Graph, OperatorCall
from hwnas.deploy.matching.matcher import matched
from hwnas.deploy.matching.network import MatchedNetwork, chosen_calls

__all__ = [
    "Decide",
    "Graph",
    "MatchedNetwork",
    "OperatorCall",
    "chosen_calls",
    "decided",
    "matched",
]
