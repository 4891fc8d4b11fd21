"""CPUs and GPUs of the workers of a run, which must fit on the nodes of Ray's cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hwnas.errors import ConfigError

__all__ = [
    "MOST_ON_A_GPU",
    "Node",
    "WorkerResources",
    "check_request",
    "evaluator_resources",
    "live_nodes",
    "training_resources",
]

Node = Mapping[str, float]
"""Resources of a node: its numbers of ``"CPU"`` and ``"GPU"``, among others."""

MOST_ON_A_GPU = 8
"""Most workers on a GPU by default; each holds about half a gigabyte of memory from the start."""


@dataclass(frozen=True)
class WorkerResources:
    """Resources of each worker.

    Attributes:
        cpus: Number of CPUs.
        gpus: Number of GPUs; a share of one if several workers use the same GPU.
    """

    cpus: int
    gpus: float


def check_request(table: str, cpus: int | None, gpus: float | None, together: bool = False) -> None:
    """Raise if no worker can get what a table of a recipe requests for each.

    Args:
        table: Name of the table, for the message.
        cpus: Value of its key ``cpus_per_worker``.
        gpus: Value of its key ``gpus_per_worker``.
        together: Whether its workers train together, each on one GPU.

    Raises:
        ConfigError: A number is out of range.
    """
    if cpus is not None and cpus < 1:
        raise ConfigError(f"{table}.cpus_per_worker is {cpus}; expected at least 1")
    if gpus is None:
        return
    able = gpus in (0, 1) if together else 0 <= gpus <= 1 or float(gpus).is_integer()
    if not able or gpus < 0:
        expected = "0 or 1" if together else "0, a share of a GPU, or a whole number"
        raise ConfigError(f"{table}.gpus_per_worker is {gpus:g}; expected {expected}")


def live_nodes() -> list[Node]:
    """Return the resources of the live nodes of the cluster that this process is connected to."""
    import ray

    nodes: Any = ray.nodes  # Ray gives no types
    return [node["Resources"] for node in nodes() if node["Alive"]]


def training_resources(
    nodes: Sequence[Node], workers: int, cpus: int | None = None, gpus: float | None = None
) -> WorkerResources:
    """Return what each of the workers gets that train together, and so must run at once.

    Args:
        nodes: Nodes of the cluster.
        workers: Number of workers.
        cpus: CPUs of each; if None, the most that all of them can get.
        gpus: GPUs of each, 0 or 1; if None, 1 if the cluster has any.

    Raises:
        ConfigError: The nodes have too few CPUs or GPUs.
    """
    if gpus is None:
        gpus = float(any(_gpus(node) for node in nodes))
    most = max(map(_cpus, nodes), default=0)
    for each in range(most, 0, -1) if cpus is None else (cpus,):
        if sum(_places(node, each, gpus) for node in nodes) >= workers:
            return WorkerResources(each, gpus)
    places = sum(_places(node, cpus or 1, gpus) for node in nodes)
    counts = [round(_gpus(node)) if gpus else _cpus(node) for node in nodes]
    there = " + ".join(str(count) for count in counts if count) or "none"
    many = "" if cpus is None or cpus == 1 else f" workers of {cpus} CPUs each"
    raise ConfigError(
        f"train.workers is {workers}, but the nodes of the cluster have "
        f"{'GPUs' if gpus else 'CPUs'} for {places}{many} ({there}); "
        + _remedy(places, gpus, cpus, counts)
    )


def _remedy(places: int, gpus: float, cpus: int | None, counts: Sequence[int]) -> str:
    if places:
        return f"set train.workers to at most {places}"
    if gpus and not any(counts):
        return "set train.gpus_per_worker = 0"
    return "set train.workers = 0" if cpus is None else "lower train.cpus_per_worker"


def evaluator_resources(
    nodes: Sequence[Node], workers: int, cpus: int | None = None, gpus: float | None = None
) -> WorkerResources:
    """Return what each of the workers gets that evaluate candidates, some of which may wait.

    Args:
        nodes: Nodes of the cluster.
        workers: Number of workers.
        cpus: CPUs of each; 1 if None.
        gpus: GPUs of each; if None, equal shares of all GPUs of the cluster, at least an eighth.

    Raises:
        ConfigError: No node has so many CPUs and GPUs.
    """
    cpus = 1 if cpus is None else cpus
    if gpus is None:
        gpus = _share([math.floor(_gpus(node)) for node in nodes], workers)
    if any(_places(node, cpus, gpus) for node in nodes):
        return WorkerResources(cpus, gpus)
    have = dict.fromkeys(_amounts(_cpus(node), _gpus(node)) for node in nodes)
    raise ConfigError(
        f"each worker of the search needs {_amounts(cpus, gpus)}, but no node of the "
        f"cluster has so many ({', '.join(have)}); lower search.cpus_per_worker or "
        "search.gpus_per_worker"
    )


def _amounts(cpus: int, gpus: float) -> str:
    return f"{cpus} CPU{'s' * (cpus != 1)} and {gpus:g} GPU{'s' * (gpus != 1)}"


def _share(gpus: Sequence[int], workers: int) -> float:
    """Return the share of a GPU with which all workers get one, to Ray's precision."""
    if not sum(gpus):
        return 0.0
    on_each = min(MOST_ON_A_GPU, math.ceil(workers / sum(gpus)))
    return math.floor(1e4 / on_each) / 1e4


def _cpus(node: Node) -> int:
    return int(node.get("CPU", 0))


def _gpus(node: Node) -> float:
    return node.get("GPU", 0)


def _places(node: Node, cpus: int, gpus: float) -> int:
    """Return how many workers a node has room for."""
    places = _cpus(node) // cpus
    if not gpus:
        return places
    whole = math.floor(_gpus(node)) * math.floor(1 / gpus) if gpus < 1 else _gpus(node) // gpus
    return min(places, int(whole))
