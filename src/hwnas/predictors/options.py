"""Expected cost of each option of a space, for differentiable architecture search."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hwnas.deploy.targets.target import Target
from hwnas.predictors.estimate import CostSource
from hwnas.predictors.expected_cost import expected_costs
from hwnas.search_spaces import Architecture, Choice, Option, SearchSpace

__all__ = ["mean_cost_of_options"]


def mean_cost_of_options(
    source: CostSource,
    space: SearchSpace,
    target: Target,
    rng: random.Random,
    samples: int = 8,
) -> dict[str, dict[str, float]]:
    """Return the mean cost of networks with each option of each choice, over drawn networks.

    All options of a choice are inserted into the same drawn networks, so that differences of costs
    come from the choice alone. If a choice has no effect in a drawn network, the choices that it
    depends on are changed so that it has one.

    Returns:
        ``{choice: {str(option): cost}}``, in the unit of the source's metric.
    """
    drawn = [space.parameters(space.sample(rng), rng) for _ in range(samples)]
    variants: dict[tuple[str, str], list[Architecture]] = {}
    for choice in space.choices:
        bases = [_with_effect(space, choice, values, rng) for values in drawn]
        for option in choice.options:
            variants[choice.name, str(option)] = [
                space.architecture({**base, choice.name: option}) for base in bases
            ]
    networks = list(dict.fromkeys(network for each in variants.values() for network in each))
    workloads = [space.workload(network) for network in networks]
    estimates = expected_costs(source, workloads, [target] * len(workloads))
    cost = {network: e.mean for network, e in zip(networks, estimates, strict=True)}
    table: dict[str, dict[str, float]] = {}
    for (name, option_text), each in variants.items():
        mean = sum(cost[network] for network in each) / samples
        table.setdefault(name, {})[option_text] = mean
    return table


def _with_effect(
    space: SearchSpace, choice: Choice, values: Mapping[str, Option], rng: random.Random
) -> dict[str, Option]:
    by_name = {each.name: each for each in space.choices}
    changed = dict(values)
    while choice.when is not None:
        if changed[choice.when.name] not in choice.when.values:
            changed[choice.when.name] = rng.choice(choice.when.values)
        choice = by_name[choice.when.name]
    return changed
