"""Sampler that generates networks of a wanted cost."""

from hwnas.search.samplers.generative.density import ConditionalDensity
from hwnas.search.samplers.generative.sampler import Generative, NetworkGenerator

__all__ = ["ConditionalDensity", "Generative", "NetworkGenerator"]
