"""What each option of a space costs, as differentiable searches need it."""

from __future__ import annotations

import random
from collections import defaultdict

from hwnas.deploy.device import Target
from hwnas.predictors.estimate import CostSource
from hwnas.search_spaces import SearchSpace

__all__ = ["mean_cost_of_options"]


def mean_cost_of_options(
    source: CostSource,
    space: SearchSpace,
    target: Target,
    rng: random.Random,
    samples: int = 200,
) -> dict[str, dict[str, float]]:
    """Mean cost of the networks that have an option, over networks drawn uniformly.

    Returns:
        ``{choice: {str(option): cost}}``, in the unit of the source's metric. Options that no drawn
        network has are left out.
    """
    drawn = [space.sample(rng) for _ in range(samples)]
    workloads = [space.workload(architecture) for architecture in drawn]
    costs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for architecture, estimate in zip(
        drawn, source.cost(workloads, [target] * samples), strict=True
    ):
        for name, option in architecture.values:
            costs[name, str(option)].append(estimate.mean)
    table: dict[str, dict[str, float]] = defaultdict(dict)
    for (name, option), values in costs.items():
        table[name][option] = sum(values) / len(values)
    return dict(table)
