"""Connection to Ray for the duration of a run, on this machine or on an existing cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hwnas.errors import ConfigError, HwnasError, WorkerError
from hwnas.search.engine.devices import device_here, on_device, reserved_device
from hwnas.search.engine.remote_files import served_files

__all__ = [
    "connected_ray",
    "local_ray",
    "map_tasks",
    "resources_here",
    "started_beside",
    "unwrapped",
]

T = TypeVar("T")

_OBJECT_STORE_BYTES = 1 << 30
_PATIENCE_SECONDS = 5
_SETTINGS = {
    "PYTHONWARNINGS": "ignore",  # for the workers, which would otherwise print Ray's own warnings
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@contextlib.contextmanager
def local_ray(cpus: int, import_paths: Sequence[Path] = ()) -> Iterator[None]:
    """Start Ray on this machine, or use the instance that this process is connected to.

    Ray has the GPUs of this machine, if PyTorch can use them.

    Args:
        cpus: Number of CPUs that Ray may assign to workers.
        import_paths: Folders that workers can import from, in addition to this process's own.

    Raises:
        ConfigError: The path of the Python executable contains a space, so Ray cannot start it.
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
            address="local",  # not a cluster that happens to run on this machine
            num_cpus=cpus,
            num_gpus=0 if device_here(None).type == "cpu" else None,  # None: all that Ray finds
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
def connected_ray(address: str, import_paths: Sequence[Path] = ()) -> Iterator[None]:
    """Connect to a Ray cluster that is already running, and leave it running.

    Workers on machines without this machine's disk copy the files that they need from it.

    Args:
        address: ``"HOST:PORT"`` of the head node; ``"auto"`` finds the cluster of this machine,
            also inside ``ray job submit``.
        import_paths: Folders that workers can import from, on machines that have these folders.

    Raises:
        ConfigError: No cluster answers at this address, or it refuses the connection.
    """
    import ray

    _check_answers(address)
    paths = [*map(str, import_paths), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONWARNINGS": "ignore", "PYTHONPATH": os.pathsep.join(paths)}
    with _set_unless_set(_SETTINGS):
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": variables},
            )
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            [reason, *_] = str(error).splitlines() or [type(error).__name__]
            raise _no_cluster(address, reason) from error
        try:
            with served_files():
                yield
        finally:
            ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise at once if nothing listens at an address; Ray itself would wait for minutes."""
    found = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
    if found is None:
        return
    try:
        host, port = found[1].strip("[]"), int(found[2])  # an IPv6 address is in brackets
        socket.create_connection((host, port), _PATIENCE_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from error


def _no_cluster(address: str, reason: str) -> ConfigError:
    return ConfigError(
        f"no Ray cluster can be used at {address!r} ({reason}); start one with "
        "`ray start --head`, or leave --ray-address out to work on this machine"
    )


@contextlib.contextmanager
def _set_unless_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set the environment variables that are not set yet, and remove these on exit."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def map_tasks(
    function: Callable[..., T],
    shared: Any,
    arguments: Sequence[tuple[Any, ...]],
    workers: int,
    gpus: float | None = 0.0,
) -> Iterator[T]:
    """Yield the result of ``function(shared, *args)`` for each tuple of arguments, in order.

    Each call is a Ray task with one CPU. Tasks run on this machine, since they may read and write
    files. ``shared`` is sent only once. Without workers, without Ray, or if Ray has no CPU on this
    machine, the calls are made in this process, one by one.

    Args:
        function: Function to call; `working_device` is the GPU that its task reserves, if any.
        shared: First argument of all calls.
        arguments: Further arguments of each call.
        workers: Number of workers; only whether it is 0 counts.
        gpus: GPUs that each task reserves, perhaps a share of one; None for one GPU, if Ray has any
            on this machine.

    Raises:
        WorkerError: Ray lost the workers for good.
    """
    import ray

    if workers == 0 or not ray.is_initialized() or not resources_here().get("CPU"):
        device = device_here(gpus)
        for args in arguments:
            with on_device(device):
                found = function(shared, *args)
            yield found
        return
    remote, place = _task_here(gpus), ray.put(shared)
    running = [remote.remote(function, place, args) for args in arguments]
    for result in running:
        try:
            yield ray.get(result)
        except ray.exceptions.RayError as error:
            raise unwrapped(error) from error


@contextlib.contextmanager
def started_beside(
    function: Callable[..., Any], shared: Any, *args: Any, gpus: float = 0.0
) -> Iterator[None]:
    """Call ``function(shared, *args)`` as a Ray task on this machine, concurrently with a block.

    Until it ends, the task takes one CPU, and ``gpus`` GPUs, from the workers of the block. The end
    of the block waits for the task, and an error in the block cancels it. The task's result or
    error is discarded. Without Ray, or if Ray has a single CPU or too few GPUs on this machine, the
    function is not called.
    """
    import ray

    there = resources_here() if ray.is_initialized() else {}
    if there.get("CPU", 0) < 2 or there.get("GPU", 0) < gpus:
        yield
        return
    running = _task_here(gpus).remote(function, ray.put(shared), args)
    try:
        yield
    except BaseException:
        ray.cancel(running, force=True)
        raise
    ray.wait([running])


def _task_here(gpus: float | None) -> Any:
    """Return `_on_its_device` as a Ray task with one CPU on this machine.

    Args:
        gpus: GPUs that it reserves; None for one, if there is any.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    gpus = min(1.0, resources_here().get("GPU", 0.0)) if gpus is None else gpus
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options: dict[str, Any] = {"num_cpus": 1, "num_gpus": gpus, "max_retries": 3}
    options["scheduling_strategy"] = here
    return ray.remote(**options)(_on_its_device)


def resources_here() -> dict[str, float]:
    """Return the resources that Ray has on this machine: its numbers of ``"CPU"`` and ``"GPU"``."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    nodes: Any = ray.nodes  # Ray gives no types
    [here] = [n for n in nodes() if n["NodeID"] == node]
    found: dict[str, float] = here["Resources"]
    return found


def _on_its_device(function: Callable[..., T], shared: Any, args: tuple[Any, ...]) -> T:
    """Call a function on the device that Ray reserved for this task, with one thread."""
    import torch

    torch.set_num_threads(1)
    with on_device(reserved_device()):
        return function(shared, *args)


def unwrapped(error: Exception) -> Exception:
    """Return the error that a worker raised, unwrapped; a WorkerError if the worker is lost."""
    import ray

    if isinstance(error, ray.exceptions.RayTaskError):
        return error.cause if isinstance(error.cause, HwnasError) else error
    return WorkerError(
        f"Ray lost its workers ({type(error).__name__}); `hwnas resume` continues and keeps all "
        "finished trials"
    )
