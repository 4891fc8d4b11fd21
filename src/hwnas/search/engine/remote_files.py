"""Files of the machine of a run, for workers on machines that do not share its disk.

A Ray actor on the machine of the run reads and writes these files. A worker has each file at the
same path as that machine: it copies a file before it reads it, and copies it back once it has
written it. Files with the same size and modification time are the same, so nothing is copied on the
machine of the run, or on a disk that all machines share.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hwnas.atomic import locked, replacing

__all__ = ["fetch_folder", "fetched", "send", "served_files"]

_NAME = "hwnas-files"
_CHUNK_BYTES = 1 << 24
_AT_ONCE = 8

State = tuple[int, int]
"""Size in bytes and modification time in nanoseconds."""

_known: dict[str, Any] = {}
"""Server of each Ray job of this process; None for a job without one."""


class _FileServer:
    """Ray actor that reads and writes files on its machine."""

    def state(self, path: str) -> State | None:
        """Return the state of a file; None if there is none."""
        return _state(Path(path))

    def states(self, folder: str, pattern: str) -> dict[str, State | None]:
        """Return the states of the files in a folder that match a pattern, by name."""
        return {path.name: _state(path) for path in Path(folder).glob(pattern)}

    def read(self, path: str, offset: int) -> bytes:
        """Return a part of a file; no bytes at its end."""
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(_CHUNK_BYTES)

    def write(self, path: str, content: bytes, modified: int) -> None:
        """Write a file, with its modification time in nanoseconds; it appears atomically."""
        with replacing(Path(path)) as temporary:
            temporary.write_bytes(content)
            os.utime(temporary, ns=(modified, modified))


@contextlib.contextmanager
def served_files() -> Iterator[None]:
    """Let workers of this Ray job copy files of this machine, for the duration of a block."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": _AT_ONCE, "name": _NAME}
    actor: Any = ray.remote(_FileServer)  # Ray's types do not tell classes from functions
    server = actor.options(**options, scheduling_strategy=here).remote()
    try:
        yield
    finally:
        ray.kill(server)


def fetched(path: Path) -> bool:
    """Copy a file of the machine of the run to this one, unless it is the same here.

    Returns:
        Whether the file is here.

    Raises:
        StorageError: The file cannot be written here.
    """
    server = _server()
    there = None if server is None else _answer(server.state.remote(str(path)))
    if there is None or there == _state(path):
        return path.exists()
    with locked(path.parent):  # other workers may need the same file
        if there != _state(path):
            _copy_here(server, path, there)
    return True


def fetch_folder(folder: Path, pattern: str) -> None:
    """Copy the files of a folder that match a pattern to this machine, as `fetched` does.

    Raises:
        StorageError: A file cannot be written here.
    """
    server = _server()
    if server is not None:
        for name, there in _answer(server.states.remote(str(folder), pattern)).items():
            if there != _state(folder / name):
                fetched(folder / name)


def send(path: Path) -> None:
    """Copy a file that was written here to the machine of the run, unless it is the same there.

    Raises:
        StorageError: The file cannot be written there.
    """
    server, here = _server(), _state(path)
    if server is None or here is None:
        return
    if _answer(server.state.remote(str(path))) != here:
        _answer(server.write.remote(str(path), path.read_bytes(), here[1]))


def _copy_here(server: Any, path: Path, state: State) -> None:
    with replacing(path) as temporary:
        with temporary.open("wb") as file:
            while part := _answer(server.read.remote(str(path), file.tell())):
                file.write(part)
        os.utime(temporary, ns=(state[1], state[1]))


def _server() -> Any:
    """Return the server of this Ray job; None without one, and on the process that started it."""
    import sys

    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    job = ray.get_runtime_context().get_job_id()
    if job not in _known:
        try:
            _known[job] = ray.get_actor(_NAME)
        except ValueError:
            _known[job] = None
    return _known[job]


def _answer(reference: Any) -> Any:
    """Return the result of a call of the server; raise the error that it raised."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def _state(path: Path) -> State | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
