"""Search strategies, each an Optuna sampler."""

from hwnas.search.samplers.batch import BatchSampler, History
from hwnas.search.samplers.computed_features import features_of_space
from hwnas.search.samplers.guided import GuidedSampler
from hwnas.search.samplers.registry import SAMPLERS, make_sampler
from hwnas.search.samplers.space_features import PredictedObjective, SpaceFeatures

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
