"""Planning of a recipe from a budget in minutes: what to train, with which settings, how long."""

from hwnas.planning.facts import JobFacts
from hwnas.planning.plan import Plan, default_space, make_plan, rates_of, training_values
from hwnas.planning.rehearsal import slowdown
from hwnas.planning.speed import TrainingRates, TrainingSpeed, measure_speeds

__all__ = [
    "JobFacts",
    "Plan",
    "TrainingRates",
    "TrainingSpeed",
    "default_space",
    "make_plan",
    "measure_speeds",
    "rates_of",
    "slowdown",
    "training_values",
]
