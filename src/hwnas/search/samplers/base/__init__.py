"""Base of the samplers: batches, pools of networks, and features of the space."""

from hwnas.search.samplers.base.batch import BatchSampler, History
from hwnas.search.samplers.base.computed_features import features_of_space
from hwnas.search.samplers.base.space_features import PredictedObjective, SpaceFeatures

__all__ = ["BatchSampler", "History", "PredictedObjective", "SpaceFeatures", "features_of_space"]
