"""Search space within a user's model: its channels and residual blocks are made elastic."""

from hwnas.search_spaces.any_model.analysis import elastic
from hwnas.search_spaces.any_model.sources import named_elastic
from hwnas.search_spaces.any_model.space import ElasticSpace, FixedModule

__all__ = ["ElasticSpace", "FixedModule", "elastic", "named_elastic"]
