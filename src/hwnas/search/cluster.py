"""Ray on this machine, for as long as a run needs it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hwnas.errors import ConfigError, HwnasError, WorkerError

__all__ = ["local_ray", "map_tasks", "unwrapped"]

T = TypeVar("T")

_OBJECT_STORE_BYTES = 1 << 30
_SETTINGS = {
    "PYTHONWARNINGS": "ignore",  # of the workers, which would otherwise greet with Ray's own
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@contextlib.contextmanager
def local_ray(cpus: int, import_paths: Sequence[Path] = ()) -> Iterator[None]:
    """Start Ray here, or use the one that this process is already connected to.

    Args:
        cpus: CPUs that it may give out.
        import_paths: Folders that workers can import from, beside those that this process can.

    Raises:
        ConfigError: Python lies where Ray cannot start it.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    if " " in sys.executable:
        raise ConfigError(
            f"Ray cannot start {sys.executable!r}, because there is a space in its path; install "
            "hwnas elsewhere, or set train.workers and search.workers to 0"
        )
    paths = [*map(str, import_paths), *filter(None, sys.path)]
    with _set_unless_set(_SETTINGS):
        ray.init(
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=_OBJECT_STORE_BYTES,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
            _node_ip_address="127.0.0.1",
        )
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _set_unless_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables that are there for a while, where they are not there already."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def map_tasks(
    function: Callable[..., T], shared: Any, arguments: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[T]:
    """Results of ``function(shared, *args)`` for each tuple of arguments, in order.

    Each call is a Ray task of one CPU where there are workers and Ray is running, and ``shared`` is
    sent only once; otherwise the calls are made here, one by one.

    Raises:
        WorkerError: Ray lost the workers for good.
    """
    import ray

    if workers == 0 or not ray.is_initialized():
        yield from (function(shared, *args) for args in arguments)
        return
    remote: Any = ray.remote(num_cpus=1, max_retries=3)(_single_threaded)
    place = ray.put(shared)
    running = [remote.remote(function, place, args) for args in arguments]
    for result in running:
        try:
            yield ray.get(result)
        except ray.exceptions.RayError as error:
            raise unwrapped(error) from error


def _single_threaded(function: Callable[..., T], shared: Any, args: tuple[Any, ...]) -> T:
    import torch

    torch.set_num_threads(1)
    return function(shared, *args)


def unwrapped(error: Exception) -> Exception:
    """What a worker raised, without Ray's wrapping; a WorkerError where the worker is lost."""
    import ray

    if isinstance(error, ray.exceptions.RayTaskError):
        return error.cause if isinstance(error.cause, HwnasError) else error
    return WorkerError(
        f"the Ray workers are gone ({type(error).__name__}); `hwnas resume` goes on without losing "
        "a finished trial"
    )
