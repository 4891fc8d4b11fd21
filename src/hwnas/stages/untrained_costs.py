"""Costs of untrained networks, for the objectives of a recipe that have a limit."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hwnas.deploy.targets.target import Target
from hwnas.errors import InfeasibleError
from hwnas.predictors.devices.calibration import quickest_export
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.search.objectives.objective import COUNTED, Objective, label_on
from hwnas.search_spaces import Architecture, SearchSpace
from hwnas.stages.goal import SearchGoal

__all__ = ["excesses", "limited", "most_macs"]

_HOPELESS = 1.5  # ratio of cost to limit above which other networks cannot keep it either


def limited(objectives: Sequence[Objective]) -> list[Objective]:
    """Return the objectives that have a limit on a cost."""
    return [o for o in objectives if o.limit is not None and o.is_cost]


def excesses(
    space: SearchSpace, networks: Sequence[Architecture], objectives: Sequence[Objective]
) -> list[float]:
    """Return, for each network, the highest ratio of a cost to its limit; above 1 it misses one.

    Args:
        space: Space that builds the networks.
        networks: Networks whose costs are counted, or measured on the targets.
        objectives: Objectives with a limit, from `limited`.
    """
    pairs = SearchGoal(tuple(objectives)).costs
    measured: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        models = {network.id: Path(folder, f"{network.id}.onnx") for network in networks}
        if pairs:
            export = quickest_export(space)
            for network in networks:
                export(space, network, models[network.id])
        for metric, target in pairs:
            costs_of = DEVICE_METRICS[metric].measure(models, Target.parse(target))
            of_networks = {name: each.value for name, each in costs_of.items()}
            measured[label_on(metric, target)] = of_networks
    found = []
    for network in networks:
        workload = space.workload(network)
        costs = [
            o.reduced({t: by_id[network.id] for t, by_id in o.on_targets(measured).items()})
            if o.all_targets
            else float(COUNTED[o.metric](workload))
            for o in objectives
        ]
        found.append(max(_excess(o, cost) for o, cost in zip(objectives, costs, strict=True)))
    return found


def most_macs(
    space: SearchSpace, kinds: Mapping[Architecture, str], objectives: Sequence[Objective]
) -> float | None:
    """Return multiply-accumulates of the largest networks that meet the limits.

    The costs of the smallest and the largest network of each kind are counted and measured; in
    between, a cost is a power of the multiply-accumulates.

    Args:
        space: Space that builds the networks.
        kinds: Networks with their kinds, from `probes`.
        objectives: Objectives of the recipe.

    Returns:
        None if all networks meet the limits.

    Raises:
        InfeasibleError: All networks violate a limit by far.
    """
    objectives = limited(objectives)
    if not objectives:
        return None
    macs = {network: space.workload(network).macs for network in kinds}
    networks = sorted(macs, key=macs.__getitem__)
    over = dict(zip(networks, excesses(space, networks, objectives), strict=True))
    if max(over.values()) <= 1:
        return None
    if (least := min(over.values())) > _HOPELESS:
        labels = " and ".join(objective.label for objective in objectives)
        raise InfeasibleError(
            f"no network of the space meets the limit of {labels}: the closest that was measured "
            f"has {least:.3g} times the limit. Raise the limit, or allow smaller networks in "
            "[space]"
        )
    most = 0.0
    for kind in set(kinds.values()):
        own = [network for network in networks if kinds[network] == kind]
        sizes = np.log([macs[network] for network in own])
        costs = np.maximum.accumulate(np.log([over[network] for network in own]))
        if costs[0] <= 0:
            most = max(most, float(np.exp(np.interp(0.0, costs, sizes))))
    return most


def _excess(objective: Objective, cost: float) -> float:
    assert objective.limit is not None
    return cost / objective.limit
