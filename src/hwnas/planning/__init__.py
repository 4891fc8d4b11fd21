"""From a budget in minutes to a recipe: what to train, how, and for how long."""

from hwnas.planning.facts import Facts
from hwnas.planning.plan import Plan, make_plan, training_values
from hwnas.planning.speed import Rates, Speed, measure_speeds

__all__ = ["Facts", "Plan", "Rates", "Speed", "make_plan", "measure_speeds", "training_values"]
