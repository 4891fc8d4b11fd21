"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hwnas.errors import StorageError

__all__ = ["locked", "replacing", "replacing_folder", "storage_errors", "write_json", "write_text"]


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

    Raises:
        StorageError: The file cannot be written; the older file, if any, is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """The same for a folder: it appears under its name only when it is complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storage_errors(path):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            if path.exists():
                shutil.rmtree(path)
            os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
