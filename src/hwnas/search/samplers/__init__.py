"""Search strategies, each an Optuna sampler."""

from hwnas.search.samplers.base.batch import BatchSampler, History
from hwnas.search.samplers.base.computed_features import features_of_space
from hwnas.search.samplers.base.space_features import PredictedObjective, SpaceFeatures
from hwnas.search.samplers.guided.sampler import GuidedSampler
from hwnas.search.samplers.registry import SAMPLERS, make_sampler

__all__ = [
    "SAMPLERS",
    "BatchSampler",
    "GuidedSampler",
    "History",
    "PredictedObjective",
    "SpaceFeatures",
    "features_of_space",
    "make_sampler",
]
