"""Manifest of a data set: the state of every file, or a hash of every array."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import xxhash

from hwnas.atomic import replacing, write_json
from hwnas.errors import ArtifactError, StorageError
from hwnas.home import home

__all__ = [
    "DataManifest",
    "array_hash",
    "arrays_manifest",
    "cached_hashes",
    "file_state",
    "manifest_difference",
]

SCHEMA = 1
ManifestKind = Literal["files", "arrays"]
_KINDS: tuple[ManifestKind, ...] = get_args(ManifestKind)

_BLOCK_BYTES = 2**24
_TICK_S = 2.0
"""Coarsest resolution of modification times on some file systems, in seconds.

Two changes of a file within one such step leave the same modification time."""


@dataclass(frozen=True)
class DataManifest:
    """States of all files or arrays of a data set, by name.

    Equal manifests mean equal data. A manifest does not depend on the location of the data set.

    Attributes:
        kind: Kind of the entries: files of a folder, or arrays.
        entries: For files, by their path in the folder with ``/``: size in bytes and modification
            time in ns, as in ``"1234 1700000000000000000"``. For arrays, by their name: a hash of
            the content, 32 hexadecimal digits.
    """

    kind: ManifestKind
    entries: Mapping[str, str]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all entries: 12 hexadecimal digits."""
        text = json.dumps([self.kind, sorted(self.entries.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Return a versioned JSON object."""
        return {"schema": SCHEMA, "kind": self.kind, "entries": dict(self.entries)}

    @classmethod
    def from_json(cls, data: Any) -> DataManifest:
        """Return the manifest from the JSON object that `to_json` made.

        Raises:
            ArtifactError: The object is damaged or was written by a newer version.
        """
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise ArtifactError(f"the manifest of the data has no schema {SCHEMA}; remove it")
        entries = data.get("entries")
        for kind in _KINDS:
            if data.get("kind") == kind and isinstance(entries, Mapping):
                return cls(kind, {str(name): str(state) for name, state in entries.items()})
        raise ArtifactError("the manifest of the data is damaged; remove it")

    def write(self, path: Path) -> None:
        """Write the manifest as JSON, compressed by gzip: about 2 MB for 100,000 files.

        Raises:
            StorageError: The file cannot be written.
        """
        with replacing(path) as temporary:
            # mtime=0 leaves out the time of writing, so that equal manifests give equal files.
            temporary.write_bytes(gzip.compress(json.dumps(self.to_json()).encode(), 6, mtime=0))

    @classmethod
    def read(cls, path: Path) -> DataManifest:
        """Return the manifest that `write` wrote.

        Raises:
            ArtifactError: The file is missing or damaged, or was written by a newer version.
        """
        try:
            return cls.from_json(json.loads(gzip.decompress(path.read_bytes())))
        except ArtifactError as error:
            raise ArtifactError(f"{path}: {error}") from None
        except (OSError, EOFError, ValueError) as error:
            raise ArtifactError(f"{path} cannot be read ({error}); remove it") from error


def manifest_difference(old: DataManifest, new: DataManifest) -> str:
    """Describe in one line the difference between two manifests.

    Returns:
        For example ``"12 of 3,600 files changed"``, ``"3 files added, 1 removed"``, ``"1 file moved
        (a/1.png to b/1.png)"`` or ``"y_train changed"``; empty if the manifests are equal.
    """
    if old.kind != new.kind:
        return f"the data were {old.kind} and are {new.kind} now"
    changed = sorted(n for n, state in old.entries.items() if new.entries.get(n, state) != state)
    removed = sorted(old.entries.keys() - new.entries.keys())
    added = sorted(new.entries.keys() - old.entries.keys())
    if old.kind == "arrays":
        arrays = ((changed, "changed"), (added, "added"), (removed, "removed"))
        return ", ".join(f"{_listed(names)} {verb}" for names, verb in arrays if names)
    moved = _moved(old, new, removed, added)
    removed = [name for name in removed if name not in moved]
    added = sorted(set(added) - set(moved.values()))
    parts = ((changed, "changed"), (added, "added"), (removed, "removed"), ([*moved], "moved"))
    return _counted(parts, len(old.entries), moved)


def _counted(parts: Iterable[tuple[list[str], str]], before: int, moved: Mapping[str, str]) -> str:
    """Return the number of files of each kind of change; a single file is named."""
    found: list[str] = []
    for names, verb in parts:
        if not names:
            continue
        count = f"{len(names):,}"
        if verb == "changed":
            count += f" of {before:,}"
        if not found:
            count += " file" if count == "1" else " files"
        name = names[0] + (f" to {moved[names[0]]}" if verb == "moved" else "")
        found.append(f"{count} {verb}{f' ({name})' if len(names) == 1 else ''}")
    return ", ".join(found)


def _moved(
    old: DataManifest, new: DataManifest, removed: list[str], added: list[str]
) -> dict[str, str]:
    """Return the new path of each moved file, one whose size and modification time stayed."""
    vanished = Counter(old.entries[name] for name in removed)
    appeared = Counter(new.entries[name] for name in added)
    unique = {new.entries[name]: name for name in added}
    return {
        name: unique[state]
        for name in removed
        if vanished[state := old.entries[name]] == appeared[state] == 1
    }


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def file_state(entry: os.DirEntry[str] | Path) -> str:
    """Return size in bytes and modification time in ns of a file; ``"0 0"`` for a broken link."""
    try:
        found = entry.stat()
    except OSError:
        return "0 0"
    return f"{found.st_size} {found.st_mtime_ns}"


def arrays_manifest(arrays: Mapping[str, Any]) -> DataManifest:
    """Return the manifest of some arrays; other values are converted to NumPy arrays first."""
    return DataManifest("arrays", {name: array_hash(value) for name, value in arrays.items()})


def array_hash(values: Any) -> str:
    """Return a hash of an array's dtype, shape and content: 32 hexadecimal digits.

    A memory-mapped array is read only once: its hash is cached together with the state of its file
    (see `cached_hashes`).
    """
    array: npt.NDArray[Any] = np.asarray(values) if not isinstance(values, np.ndarray) else values
    place = _place_in_file(array)
    if place is None:
        return _content_hash(array)
    path, offset = place
    key = f"{offset} {array.nbytes} {array.dtype.str} {array.shape}"
    return cached_hashes(path, key, lambda: {"array": _content_hash(array)})["array"]


def _place_in_file(array: npt.NDArray[Any]) -> tuple[Path, int] | None:
    """Return file and byte offset of a contiguous, read-only memory-mapped array; else None."""
    whole = array
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    if not (isinstance(whole, np.memmap) and array.flags.c_contiguous) or whole.mode != "r":
        return None
    if whole.filename is None:
        return None
    offset = whole.offset + array.ctypes.data - whole.ctypes.data
    return Path(whole.filename), offset


def _content_hash(array: npt.NDArray[Any]) -> str:
    found = xxhash.xxh3_128(f"{array.dtype.str} {array.shape}".encode())
    if array.dtype.hasobject:
        found.update(repr(array.tolist()).encode())
    elif array.ndim == 0 or array.flags.c_contiguous:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, len(flat), _BLOCK_BYTES):
            found.update(flat[start : start + _BLOCK_BYTES].data)
    else:
        rows = max(1, _BLOCK_BYTES * len(array) // max(1, array.nbytes))
        for start in range(0, len(array), rows):
            found.update(np.ascontiguousarray(array[start : start + rows]).tobytes())
    return found.hexdigest()


def cached_hashes(
    path: Path, key: str, compute: Callable[[], Mapping[str, str]]
) -> Mapping[str, str]:
    """Return hashes of a file's content, computed only if the file may have changed.

    The hashes are cached in ``data_hashes/`` of `hwnas.home.home`. They are valid as long as the
    size, modification time, status change time and inode of the file stay the same. The hashes of a
    file that changed within the last two seconds are not cached. If the cache cannot be written,
    the hashes are computed again the next time.

    Args:
        path: File to hash.
        key: Name of this set of hashes among those of the file.
        compute: Function that reads the file and returns its hashes by name.

    Raises:
        OSError: The file does not exist.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return compute()
    state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    resolved = str(path.resolve())
    digest = hashlib.sha256(resolved.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    kept = home() / "data_hashes" / f"{digest}.json"
    known = _kept_hashes(kept, state)
    if key in known:
        return known[key]
    began = time.time()
    found = compute()
    if began - max(status.st_mtime, status.st_ctime) > _TICK_S:
        with contextlib.suppress(StorageError):
            write_json(
                kept,
                {
                    "schema": SCHEMA,
                    "path": resolved.encode("utf-8", "replace").decode(),
                    "state": state,
                    "hashes": {**known, key: dict(found)},
                },
            )
    return found


def _kept_hashes(path: Path, state: list[int]) -> dict[str, dict[str, str]]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["schema"] == SCHEMA and kept["state"] == state:
            return {str(key): dict(hashes) for key, hashes in kept["hashes"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {}
