"""Search strategies, each an Optuna sampler."""

from hwnas.search.samplers.batch import BatchSampler, History
from hwnas.search.samplers.guided import GuidedSampler
from hwnas.search.samplers.registry import SAMPLERS, make_sampler
from hwnas.search.samplers.space_features import PredictedObjective, SpaceFeatures
from hwnas.search.samplers.space_knowledge import knowledge_of_space

__all__ = [
    "SAMPLERS",
    "BatchSampler",
    "GuidedSampler",
    "History",
    "PredictedObjective",
    "SpaceFeatures",
    "knowledge_of_space",
    "make_sampler",
]
