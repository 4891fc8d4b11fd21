"""Guided sampler: expected hypervolume improvement on a surrogate of the objectives."""

from hwnas.search.samplers.guided.sampler import GuidedSampler

__all__ = ["GuidedSampler"]
