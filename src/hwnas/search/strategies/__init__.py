"""Strategies that learn a distribution over networks while the weights of all are trained."""

from hwnas.search.strategies.additive_cost import AdditiveCost
from hwnas.search.strategies.distribution import ArchitectureDistribution
from hwnas.search.strategies.registry import STRATEGIES, make_strategy
from hwnas.search.strategies.strategy import Strategy, StrategyStep

__all__ = [
    "STRATEGIES",
    "AdditiveCost",
    "ArchitectureDistribution",
    "Strategy",
    "StrategyStep",
    "make_strategy",
]
