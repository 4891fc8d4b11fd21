"""What can be built: choices, spaces, supernets, and what a network asks of hardware."""

from collections.abc import Callable, Mapping

from hwnas.search_spaces.architecture import Architecture, Candidate
from hwnas.search_spaces.cells import CellSpace, nasbench201
from hwnas.search_spaces.choice_space import ChoiceSpace
from hwnas.search_spaces.choices import Choice, Option, When
from hwnas.search_spaces.hybrid import HybridSpace, hybrid
from hwnas.search_spaces.hybrid_config import HybridConfig, HybridStage
from hwnas.search_spaces.mobilenet import MobileNetSpace, mobilenet
from hwnas.search_spaces.mobilenet_config import MobileNetConfig, Stage
from hwnas.search_spaces.product import ProductSpace
from hwnas.search_spaces.recipe import RecipeSpace, recipe_space
from hwnas.search_spaces.space import SearchSpace
from hwnas.search_spaces.steps import Assembly, PartTable, Step, StepTable
from hwnas.search_spaces.supernet import Supernet, batch_norms
from hwnas.search_spaces.vit import VitSpace, vit
from hwnas.search_spaces.vit_config import VitConfig
from hwnas.search_spaces.workload import Operator, OperatorKind, TensorSpec, Workload, trace

__all__ = [
    "ROLES",
    "SPACES",
    "Architecture",
    "Assembly",
    "Candidate",
    "CellSpace",
    "Choice",
    "ChoiceSpace",
    "HybridConfig",
    "HybridSpace",
    "HybridStage",
    "MobileNetConfig",
    "MobileNetSpace",
    "Operator",
    "OperatorKind",
    "Option",
    "PartTable",
    "ProductSpace",
    "RecipeSpace",
    "SearchSpace",
    "Stage",
    "Step",
    "StepTable",
    "Supernet",
    "TensorSpec",
    "VitConfig",
    "VitSpace",
    "When",
    "Workload",
    "batch_norms",
    "hybrid",
    "mobilenet",
    "nasbench201",
    "recipe_space",
    "trace",
    "vit",
]

SPACES: Mapping[str, Callable[..., SearchSpace]] = {
    "hybrid": hybrid,
    "mobilenet": mobilenet,
    "nasbench201": nasbench201,
    "vit": vit,
}

# What a search may have beside networks; the name is the role.
ROLES: Mapping[str, Callable[..., ChoiceSpace]] = {"recipe": recipe_space}
