"""From a budget in minutes to a recipe: what to train, how, and for how long."""

from hwnas.planning.facts import Facts
from hwnas.planning.plan import Plan, default_space, make_plan, training_values
from hwnas.planning.speed import Rates, Speed, measure_speeds

__all__ = [
    "Facts",
    "Plan",
    "Rates",
    "Speed",
    "default_space",
    "make_plan",
    "measure_speeds",
    "training_values",
]
