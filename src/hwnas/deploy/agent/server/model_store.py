"""Store of the ONNX files that an agent received, by SHA-256, with limits on number and size.

A file is used only after its content was found to match its name. A file that is damaged later, by
a disk or a power loss, is removed, so that the host is asked to send it again.
"""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

from hwnas.atomic import move_synced, storage_errors
from hwnas.deploy.agent.protocol import AgentLimits
from hwnas.deploy.agent.signing import is_digest
from hwnas.errors import ArtifactError, ConfigError, StorageError

__all__ = ["MissingModel", "ModelStore", "looks_like_onnx"]

_ENDING, _UNFINISHED = ".onnx", ".part"
_CHUNK, _COPIED_AT_ONCE = 2**16, 2**20
_NUMBERS, _TEXTS = frozenset({1, 5}), frozenset({2, 3, 4, 6, 7, 8, 14, 20, 25, 26})
_GRAPH = 7
_MOST_FIELDS = 20_000


class MissingModel(ArtifactError):
    """Error of a model that a job needs and the store does not hold, or holds damaged."""


class ModelStore:
    """Folder of ONNX files.

    Args:
        folder: Folder of the files; created if missing. Unfinished files in it are removed.
        limits: Limits on the number and the sizes of files.
    """

    def __init__(self, folder: Path, limits: AgentLimits) -> None:
        self._folder, self._limits = folder, limits
        self._lock, self._reserved_bytes = threading.Lock(), 0
        self._verified: dict[str, _Identity] = {}
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.glob(f"*{_UNFINISHED}"):
                path.unlink(missing_ok=True)

    def __contains__(self, model: str) -> bool:
        """Return whether a file exists and matches its name; a damaged one is removed.

        The content is read once, and again if the file's size or times have changed.
        """
        path = self.path(model)
        try:
            with path.open("rb") as file:
                identity = _identity(file)
                if self._verified.get(model) == identity:
                    return True
                whole = hashlib.file_digest(file, "sha256").hexdigest() == model
        except FileNotFoundError:
            return False
        except OSError:  # the disk fails
            whole = False
        if whole:
            self._verified[model] = identity
        else:
            self._discard(model)
        return whole

    def copy(self, model: str, to: Path) -> None:
        """Copy a file for a job, and verify every byte of the copy.

        Raises:
            MissingModel: The file does not exist, or was damaged and is now removed.
            StorageError: The copy cannot be written.
        """
        digest, path = hashlib.sha256(), self.path(model)
        try:
            source = path.open("rb")
        except OSError as error:
            raise MissingModel(f"model {model} is no longer stored; send it again") from error
        with source, storage_errors(to), to.open("wb") as copy:
            while chunk := _read(source):
                digest.update(chunk)
                copy.write(chunk)
        if digest.hexdigest() != model:
            self._discard(model)
            raise MissingModel(f"model {model} was damaged on the agent's disk; send it again")

    def _discard(self, model: str) -> None:
        with self._lock:
            self._verified.pop(model, None)
            self.path(model).unlink(missing_ok=True)

    def path(self, model: str) -> Path:
        """Return the path that a file has, or would have.

        Raises:
            ConfigError: The name is not a SHA-256 in hexadecimal.
        """
        if not is_digest(model):
            raise ConfigError(f"the model id is {model[:80]!r}; expected 64 hexadecimal digits")
        return self._folder / f"{model}{_ENDING}"

    def receive(
        self, model: str, length: int, read: Callable[[int], bytes], needed: Collection[str]
    ) -> None:
        """Receive a file.

        Args:
            model: SHA-256 of the file, in hexadecimal.
            length: Size of the file in bytes.
            read: Function that returns at most the given number of bytes of it.
            needed: Files that must not be removed to make room.

        Raises:
            ConfigError: The file is empty or too large.
            ArtifactError: The file does not match its name, or is not an ONNX file.
            StorageError: The disk is full, or all stored files are needed.
        """
        path = self.path(model)
        if not 0 < length <= self._limits.model_bytes:
            raise ConfigError(
                f"the model has {length} bytes; expected 1 to {self._limits.model_bytes}"
            )
        self._reserve(length, needed)
        temporary = path.with_suffix(f".{uuid.uuid4().hex}{_UNFINISHED}")
        try:
            with storage_errors(path):
                _write(temporary, model, length, read)
                move_synced(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
            with self._lock:
                self._reserved_bytes -= length

    def _reserve(self, length: int, needed: Collection[str]) -> None:
        """Make room for one file of ``length`` bytes."""
        with self._lock, storage_errors(self._folder):
            found = [(path.stat(), path) for path in self._folder.glob(f"*{_ENDING}")]
            used = sum(stat.st_size for stat, _ in found) + self._reserved_bytes
            spare = [each for each in found if each[1].stem not in needed]
            oldest = sorted(spare, key=lambda each: each[0].st_mtime)
            count = len(found)
            while used + length > self._limits.models_bytes or count >= self._limits.models:
                if not oldest:
                    raise StorageError(
                        f"unfinished jobs need {count} stored models of {used} bytes, which leaves "
                        f"no space for {length} bytes more; wait for these jobs, or stop them"
                    )
                stat, path = oldest.pop(0)
                path.unlink(missing_ok=True)
                used, count = used - stat.st_size, count - 1
            self._reserved_bytes += length


_Identity = tuple[int, int, int, int]
"""Inode, size and times of a file, which other content hardly ever shares."""


def _identity(file: BinaryIO) -> _Identity:
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(file: BinaryIO) -> bytes:
    """Read a chunk of a stored file; return nothing if the disk fails."""
    try:
        return file.read(_COPIED_AT_ONCE)
    except OSError:
        return b""


def _write(path: Path, model: str, length: int, read: Callable[[int], bytes]) -> None:
    """Write a received file, and raise `ArtifactError` unless it is the announced one."""
    digest, left = hashlib.sha256(), length
    with path.open("xb") as file:
        while left:
            chunk = read(min(left, _CHUNK))
            if not chunk:
                raise ArtifactError(f"{left} bytes of the model are missing; send it again")
            file.write(chunk)
            digest.update(chunk)
            left -= len(chunk)
    if digest.hexdigest() != model:
        raise ArtifactError(f"the model has SHA-256 {digest.hexdigest()}, not {model}")
    if not looks_like_onnx(path):
        raise ArtifactError("the model is not an ONNX file")


def looks_like_onnx(path: Path) -> bool:
    """Return whether a file has the outline of an ONNX model: known fields, including a graph.

    The check is cheap and does not read the content of fields. The process that times the model
    checks the graph.
    """
    size, has_graph = path.stat().st_size, False
    with path.open("rb") as file:
        for _ in range(_MOST_FIELDS):
            if file.tell() == size:
                return has_graph
            tag, value = _varint(file), _varint(file)
            if tag is None or value is None:
                return False
            number, kind = tag >> 3, tag & 7
            if kind == 2 and number in _TEXTS and file.tell() + value <= size:
                file.seek(value, os.SEEK_CUR)
                has_graph = has_graph or number == _GRAPH
            elif kind != 0 or number not in _NUMBERS:
                return False
    return False


def _varint(file: BinaryIO) -> int | None:
    """Return the next protobuf varint, with seven bits in each byte, or None if there is none."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None
