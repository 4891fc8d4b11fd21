"""Recipe of a run: the TOML file of its settings, as typed values."""

from hwnas.recipe.budget import ComputeConfig, RunConfig
from hwnas.recipe.finalists import DeployConfig
from hwnas.recipe.reading import parse_recipe, read_recipe
from hwnas.recipe.recipe import Named, Recipe
from hwnas.recipe.search import PredictorConfig, SearchConfig, SpaceConfig

__all__ = [
    "ComputeConfig",
    "DeployConfig",
    "Named",
    "PredictorConfig",
    "Recipe",
    "RunConfig",
    "SearchConfig",
    "SpaceConfig",
    "parse_recipe",
    "read_recipe",
]
