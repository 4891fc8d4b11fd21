"""Resources of the workers that train together on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hwnas.errors import ConfigError

__all__ = ["WorkerResources", "worker_resources"]


@dataclass(frozen=True)
class WorkerResources:
    """Resources of each worker.

    Attributes:
        cpus: Number of CPUs.
        gpus: Number of GPUs, 0 or 1.
    """

    cpus: int
    gpus: int


def worker_resources(nodes: Sequence[Mapping[str, float]], workers: int) -> WorkerResources:
    """Return the most that each worker can get if all get the same and all run at once.

    Workers get a GPU each if the cluster has any.

    Args:
        nodes: Resources of each node: its numbers of ``"CPU"`` and ``"GPU"``.
        workers: Number of workers.

    Raises:
        ConfigError: The nodes have too few GPUs or CPUs for so many workers.
    """
    cpus, gpus = ([int(node.get(name, 0)) for node in nodes] for name in ("CPU", "GPU"))
    on_gpus = sum(gpus) > 0
    for each in range(max(cpus, default=0), 0, -1):
        places = [cpu // each for cpu in cpus]
        if on_gpus:
            places = [min(place, gpu) for place, gpu in zip(places, gpus, strict=True)]
        if sum(places) >= workers:
            return WorkerResources(each, int(on_gpus))
    most = sum(map(min, cpus, gpus)) if on_gpus else sum(cpus)
    there = " + ".join(str(count) for count in (gpus if on_gpus else cpus) if count) or "none"
    raise ConfigError(
        f"train.workers is {workers}, but the nodes of the cluster have "
        f"{'GPUs' if on_gpus else 'CPUs'} for {most} ({there}); set train.workers to at most {most}"
    )
