"""Files that only their owner may read, such as keys."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hwnas.atomic import replacing, storage_errors
from hwnas.errors import ConfigError

__all__ = ["private_folder", "read_private", "write_private"]

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OWNER_READS, _OWNER_ENTERS = 0o600, 0o700


def read_private(path: Path) -> str:
    """Return the text of a file that no other user can read or write.

    Raises:
        ConfigError: The file is missing, is not text, or is accessible to others.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & _OTHERS:
                raise ConfigError(
                    f"{path} holds a secret and other users can access it (mode {mode:04o}); run: "
                    f"chmod 600 {path}"
                )
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def write_private(path: Path, text: str) -> None:
    """Write a file that no other user can read, atomically.

    Raises:
        StorageError: The file cannot be written.
    """
    with replacing(path) as temporary:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(temporary, flags, _OWNER_READS), "w", encoding="utf-8") as file:
            file.write(text)


def private_folder(path: Path) -> Path:
    """Create a folder that no other user can enter, unless the folder exists, and return its path.

    Raises:
        StorageError: The folder cannot be created.
    """
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True, mode=_OWNER_ENTERS)
    return path
