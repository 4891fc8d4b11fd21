"""Space of vision transformers that do several tasks, each with experts of its own."""

from hwnas.search_spaces.experts.config import ExpertsConfig
from hwnas.search_spaces.experts.space import ExpertsSpace, experts

__all__ = ["ExpertsConfig", "ExpertsSpace", "experts"]
