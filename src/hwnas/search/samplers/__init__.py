"""Search strategies, each an Optuna sampler."""

from hwnas.search.samplers.catalogue import SAMPLERS, make_sampler
from hwnas.search.samplers.guided import GuidedSampler
from hwnas.search.samplers.knowledge import Knowledge, Price
from hwnas.search.samplers.planned import History, PlannedSampler
from hwnas.search.samplers.space_knowledge import knowledge_of_space

__all__ = [
    "SAMPLERS",
    "GuidedSampler",
    "History",
    "Knowledge",
    "PlannedSampler",
    "Price",
    "knowledge_of_space",
    "make_sampler",
]
