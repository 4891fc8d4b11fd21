"""Atomic writes of files and folders: each is complete or absent, also after a power failure."""

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
from typing import Any, TextIO

from hwnas.errors import StorageError

__all__ = [
    "appending",
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

_HERE = -100  # AT_FDCWD: paths are relative to the working directory
_EXCHANGE = 2  # RENAME_EXCHANGE


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise a `StorageError` that names ``path`` in place of any `OSError`."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {_reason(error)}. Free some space or choose another folder"
        ) from error


@contextlib.contextmanager
def appending(path: Path) -> Iterator[TextIO]:
    """Open a file of lines to append to; end a last line that a kill left incomplete first.

    Raises:
        StorageError: The file cannot be written.
    """
    with storage_errors(path), path.open("a", encoding="utf-8") as file:
        if file.tell() and not _ends_a_line(path):
            file.write("\n")
        yield file


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _reason(error: OSError) -> str:
    """Return a short reason; of several files that could not be copied, that of the first."""
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        _, _, why = error.args[0][0]
        return str(why).split(": ")[0]
    return error.strerror or str(error)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, which is created if it does not exist.

    Other processes that call this for the same folder wait.

    Raises:
        StorageError: The folder cannot be created or opened.
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
    """Yield a temporary path beside ``path``; the file written there replaces ``path`` on success.

    The new file is synced to disk before it is renamed. After a power failure there is the old file
    or the new one, never an empty one.

    Raises:
        StorageError: The file cannot be written; the older file, if any, is unchanged.
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
    """Rename a finished file durably: a power failure leaves the old state or the new one.

    Args:
        source: Path of the file, on the same file system as ``path``.
        path: New path of the file; an existing file is replaced.
    """
    _sync(source)
    os.replace(source, path)
    _sync(path.parent)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; it replaces ``path`` as a whole on success.

    Where the system can exchange two folders in one step, ``path`` exists at all times. Elsewhere
    the complete new folder is first named ``.NAME.new``. A process that dies before the last
    rename leaves it under that name, and `recovered_folder` moves it.

    Raises:
        StorageError: The folder cannot be written, or ``path`` exists and is not a folder;
            the existing content is unchanged.
    """
    temporary = _temporary(path)
    with storage_errors(path):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise NotADirectoryError(errno.ENOTDIR, "it exists and is not a folder")
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

    Call this before opening a folder that `replacing_folder` writes.

    Returns:
        ``path``.
    """
    waiting = _waiting(path)
    if waiting.is_dir():
        # A process without write permission cannot move the folder; it uses the existing one.
        with contextlib.suppress(OSError, StorageError), locked(path.parent):
            _recover(path, waiting)
    return path


def sync_tree(folder: Path) -> None:
    """Wait until a folder and all files in it are on disk."""
    for place, _, files in os.walk(folder):
        for name in files:
            if not os.path.islink(os.path.join(place, name)):
                _sync(Path(place, name))
        _sync(Path(place))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _temporary(path: Path) -> Path:
    """Return a name unique to this thread; its last part but one is the process id."""
    return _beside(path, f"{threading.get_ident()}.{os.getpid()}.tmp")


def _waiting(path: Path) -> Path:
    """Return the name of a complete folder that is to replace ``path``."""
    return _beside(path, "new")


def _beside(path: Path, ending: str) -> Path:
    """Return a hidden name beside ``path``; ``path`` may be ``.`` or end in ``..``."""
    named = path if path.name not in ("", "..") else path.resolve()
    return named.parent / f".{named.name}.{ending}"


def _put_in_place(temporary: Path, path: Path) -> None:
    """Move a complete folder to ``path``; the older folder is moved to ``temporary``."""
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
    """Move a complete waiting folder to ``path``; remove it if ``path`` exists."""
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
    """Remove the temporary folders that processes which have died left beside this folder."""
    for leftover in path.parent.glob(f".{_escaped(path.name)}.*.tmp"):
        *_, process, _ = leftover.name.split(".")
        if process.isdigit() and not _is_alive(int(process)):
            shutil.rmtree(leftover, ignore_errors=True)


def _escaped(name: str) -> str:
    """Return a name for `Path.glob` with its special characters escaped."""
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
    """Exchange two folders in one step; return False if the system or file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    done: int = rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE)
    return done == 0


def _sync(path: Path) -> None:
    """Wait until a file, or the list of entries of a folder, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:  # some file systems cannot sync folders
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(handle)
