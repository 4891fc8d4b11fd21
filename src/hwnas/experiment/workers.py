"""Workers of a run: Ray for its duration, with as many CPUs and GPUs as the recipe requests."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from hwnas.errors import ConfigError
from hwnas.recipe import Recipe
from hwnas.recipe.budget import gpus_in
from hwnas.search.engine.cluster import connected_ray, local_ray, resources_here
from hwnas.search.engine.devices import device_here
from hwnas.search.engine.placement import live_nodes
from hwnas.stages.job import Job

__all__ = ["connected"]


@contextlib.contextmanager
def connected(job: Job, address: str | None) -> Iterator[None]:
    """Connect to Ray, or start it here if the recipe asks for workers.

    Args:
        job: Run that is being worked on.
        address: Address of a cluster; None to work on this machine.

    Raises:
        ConfigError: The recipe requests more than there is.
    """
    workers, folders = job.recipe.workers, [job.folder.recipe_folder]
    _check_this_process(job.recipe)
    if address is not None:
        if workers == 0:
            raise ConfigError(
                f"a Ray cluster at {address!r} was given, but search.workers is 0; set it to the "
                "largest number of workers to use"
            )
        ray = connected_ray(address, folders)
    elif workers == 0:
        yield
        return
    else:
        ray = local_ray(max(workers, os.cpu_count() or 1), folders)
    with ray:
        _check_cluster(job)
        yield


def _check_this_process(recipe: Recipe) -> None:
    """Raise if work in this process, without a worker, is to use a GPU that is not here."""
    requested = {
        "train": recipe.train.workers == 0 and recipe.train.gpus_per_worker,
        "search": recipe.search.workers == 0 and recipe.search.gpus_per_worker,
        "deploy": recipe.workers == 0 and recipe.deploy.gpus_per_worker,
    }
    for table, gpus in requested.items():
        if gpus and device_here(None).type == "cpu":
            raise ConfigError(
                f"{_asked(recipe, table, gpus)}, but PyTorch finds no GPU on this machine; set it "
                "to 0, or leave it out"
            )


def _check_cluster(job: Job) -> None:
    """Raise if Ray has too few CPUs or GPUs for the workers of a stage."""
    recipe, nodes = job.recipe, live_nodes()
    if job.trains_supernet and recipe.train.workers:
        recipe.train.worker_resources(nodes)
    if recipe.search.workers:
        recipe.search.worker_resources(nodes)
    wanted, there = recipe.deploy.gpus_per_worker or 0, resources_here().get("GPU", 0)
    if wanted > there:
        raise ConfigError(
            f"{_asked(recipe, 'deploy', wanted)}, but Ray has {there:g} GPUs on this machine, "
            f"where finalists are fine-tuned; set it to at most {there:g}"
        )


def _asked(recipe: Recipe, table: str, gpus: float) -> str:
    """Return a table's number of GPUs for the user, under the key that set it."""
    of_all = recipe.compute.gpus_per_worker
    if of_all is not None and gpus == gpus_in(table, of_all):
        table, gpus = "compute", of_all
    return f"{table}.gpus_per_worker is {gpus:g}"
