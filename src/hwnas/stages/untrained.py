"""What networks that are not trained yet cost, where a recipe limits it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hwnas.deploy.device import Target
from hwnas.deploy.export import export_onnx
from hwnas.deploy.timing import measure
from hwnas.errors import InfeasibleError
from hwnas.search.objective import COUNTED, LATENCY, Objective
from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["excesses", "export_untrained", "limited", "most_macs"]

_HOPELESS = 1.5  # times a limit, if every network that was measured takes more


def export_untrained(space: SearchSpace, network: Architecture, path: Path) -> None:
    """Export a network with random weights, which is as fast as a trained one."""
    export_onnx(space.build(network), space.input_shape(network), path)


def limited(objectives: Sequence[Objective]) -> list[Objective]:
    """Return the objectives that limit what a network costs."""
    return [o for o in objectives if o.limit is not None and o.is_cost]


def excesses(
    space: SearchSpace, networks: Sequence[Architecture], objectives: Sequence[Objective]
) -> list[float]:
    """Return, for each network, the highest ratio of a cost to its limit; above 1 it misses one.

    Args:
        space: Of the networks.
        networks: Those to be counted, and measured with random weights on the targets.
        objectives: Those with a limit, of `limited`.
    """
    targets = list(dict.fromkeys(target for o in objectives for target in o.priced_on))
    latencies: dict[str, dict[str, float]] = {network.id: {} for network in networks}
    with tempfile.TemporaryDirectory() as folder:
        models = {network.id: Path(folder, f"{network.id}.onnx") for network in networks}
        if targets:
            for network in networks:
                export_untrained(space, network, models[network.id])
        for target in targets:
            for name, measured in measure(models, Target.parse(target)).items():
                latencies[name][target] = measured.latency_ms
    found = []
    for network in networks:
        workload = space.workload(network)
        costs = [
            o.reduced(latencies[network.id])
            if o.metric == LATENCY
            else float(COUNTED[o.metric](workload))
            for o in objectives
        ]
        found.append(max(_excess(o, cost) for o, cost in zip(objectives, costs, strict=True)))
    return found


def most_macs(
    space: SearchSpace, kinds: Mapping[Architecture, str], objectives: Sequence[Objective]
) -> float | None:
    """Multiply-accumulates of the largest networks that keep the limits; None if all networks do.

    The smallest network of each kind and the largest are counted and measured; between them, costs
    go with a power of the multiply-accumulates.

    Args:
        space: Of the networks.
        kinds: Networks of each kind, `probes`.
        objectives: Those of the recipe.

    Raises:
        InfeasibleError: All of them miss a limit by far, so that others would, too.
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
            f"no network of the space keeps the limit of {labels}: the nearest that was measured "
            f"has {least:.3g} times as much. Raise the limit, or allow smaller networks in [space]"
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
    return cost / objective.limit if objective.limit > 0 else math.inf
