"""What a candidate will cost, with an uncertainty and a word for where the number comes from."""

from hwnas.predictors.estimate import CostKind, CostSource, Estimate, Predictor
from hwnas.predictors.features import features
from hwnas.predictors.linear import LatencyRegression
from hwnas.predictors.selection import networks_to_time

__all__ = [
    "CostKind",
    "CostSource",
    "Estimate",
    "LatencyRegression",
    "Predictor",
    "features",
    "networks_to_time",
]
