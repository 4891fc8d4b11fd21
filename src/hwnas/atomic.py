"""Files and folders that are there whole or not at all, also after a loss of power."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hwnas.errors import StorageError

__all__ = [
    "locked",
    "move_synced",
    "recovered_folder",
    "replacing",
    "replacing_folder",
    "storage_errors",
    "sync_tree",
    "write_json",
    "write_text",
]

_HERE = -100  # AT_FDCWD: paths are relative to the current folder
_EXCHANGE = 2  # RENAME_EXCHANGE


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write under ``path`` into a StorageError that names it."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {_reason(error)}. Free some space or choose another folder"
        ) from error


def _reason(error: OSError) -> str:
    """In a few words; of many files that could not be copied, what is wrong with the first."""
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        _, _, why = error.args[0][0]
        return str(why).split(": ")[0]
    return error.strerror or str(error)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for the same folder waiting; it is made if it is not there.

    Raises:
        StorageError: The folder cannot be made or opened.
    """
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; what is written there replaces ``path`` on success.

    The new file is on the disk before it takes the name, so a loss of power leaves the old file or
    the new one, never an empty one.

    Raises:
        StorageError: The file cannot be written; the older file, if any, is untouched.
    """
    temporary = _temporary(path)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            move_synced(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def move_synced(source: Path, path: Path) -> None:
    """Give a finished file its name, in a way that a loss of power cannot undo by halves.

    Args:
        source: The file, on the same file system.
        path: Its name from now on; a file that is there is replaced.
    """
    _sync(source)
    os.replace(source, path)
    _sync(path.parent)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside ``path``; it replaces ``path`` as a whole on success.

    Where the system can exchange two folders in one step, ``path`` is there at all times. Elsewhere
    the new folder first waits, complete, as ``.NAME.new``; a process that dies before it has
    moved it leaves it there, and `recovered_folder` moves it.

    Raises:
        StorageError: The folder cannot be written, or ``path`` is something else than a folder;
            what is there is untouched.
    """
    temporary = _temporary(path)
    with storage_errors(path):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise NotADirectoryError(errno.ENOTDIR, "it is there and is no folder")
        _remove_leftovers(path)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            sync_tree(temporary)
            with locked(path.parent):
                _put_in_place(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def recovered_folder(path: Path) -> Path:
    """Finish the replacement of a folder that a crash has interrupted.

    To be called before a folder is opened that `replacing_folder` writes.

    Returns:
        ``path``.
    """
    waiting = _waiting(path)
    if waiting.is_dir():
        # Whoever may not write here cannot move it either, and finds what there is.
        with contextlib.suppress(OSError, StorageError), locked(path.parent):
            _recover(path, waiting)
    return path


def sync_tree(folder: Path) -> None:
    """Wait until a folder and all files in it are on the disk."""
    for place, _, files in os.walk(folder):
        for name in files:
            if not os.path.islink(os.path.join(place, name)):
                _sync(Path(place, name))
        _sync(Path(place))


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _temporary(path: Path) -> Path:
    """Return a name of this thread's own; its last part but one is the process."""
    return _beside(path, f"{threading.get_ident()}.{os.getpid()}.tmp")


def _waiting(path: Path) -> Path:
    """Return the name of a complete folder that is to become ``path``."""
    return _beside(path, "new")


def _beside(path: Path, ending: str) -> Path:
    """Return a hidden name beside ``path``, which may be ``.`` or end in ``..``."""
    named = path if path.name not in ("", "..") else path.resolve()
    return named.parent / f".{named.name}.{ending}"


def _put_in_place(temporary: Path, path: Path) -> None:
    """Move a complete folder to its name; what was there has the name ``temporary`` afterwards."""
    waiting = _waiting(path)
    _recover(path, waiting)
    if not path.exists():
        os.rename(temporary, path)
    elif not _exchanged(temporary, path):
        os.rename(temporary, waiting)
        _sync(path.parent)
        os.rename(path, temporary)
        os.rename(waiting, path)
    _sync(path.parent)


def _recover(path: Path, waiting: Path) -> None:
    """Move a complete folder that waits to its name, or remove it where the older one is there."""
    if not waiting.is_dir():
        return
    if path.exists():
        discarded = _temporary(path)
        os.rename(waiting, discarded)
        shutil.rmtree(discarded, ignore_errors=True)
    else:
        os.rename(waiting, path)
        _sync(path.parent)


def _remove_leftovers(path: Path) -> None:
    """Remove what processes that have died were writing for this folder."""
    for leftover in path.parent.glob(f".{_escaped(path.name)}.*.tmp"):
        *_, process, _ = leftover.name.split(".")
        if process.isdigit() and not _is_alive(int(process)):
            shutil.rmtree(leftover, ignore_errors=True)


def _escaped(name: str) -> str:
    """Return a name for `Path.glob` in which no character is special."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _exchanged(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; False where the system or its file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    done: int = rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE)
    return done == 0


def _sync(path: Path) -> None:
    """Wait until a file, or the list of names of a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:  # some file systems cannot do that for folders
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(handle)
