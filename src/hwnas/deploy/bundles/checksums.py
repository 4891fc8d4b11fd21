"""SHA-256 checksums of the files in a folder, in the format of ``sha256sum -c``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from hwnas.deploy.error_line import first_line
from hwnas.errors import ArtifactError

__all__ = ["inside", "read_sums", "render_sums", "sha256"]


def sha256(path: Path) -> str:
    """Return the SHA-256 checksum of a file as 64 hexadecimal digits.

    Raises:
        ArtifactError: The file is missing or cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error


def render_sums(sums: Mapping[str, str]) -> str:
    """Return the canonical text of checksums: one line per file, sorted by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def read_sums(path: Path) -> dict[str, str]:
    """Read the checksums, by file name, from a file that holds the result of `render_sums`.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} is missing or damaged: {first_line(error)}") from error
    sums = {name: digest for digest, name in re.findall(r"([0-9a-f]{64})  (.+)\n", text)}
    if text != render_sums(sums):
        raise ArtifactError(f"{path} is damaged: expected a SHA-256 and a file name on each line")
    return sums


def inside(folder: Path, name: object) -> Path:
    """Return the path of a file that must lie in ``folder``.

    Raises:
        ArtifactError: The name is not text, or does not lead to a place inside the folder.
    """
    if isinstance(name, str) and name and "\0" not in name:
        path = folder / name
        if path.resolve().is_relative_to(folder.resolve()) and path.resolve() != folder.resolve():
            return path
    raise ArtifactError(f"{folder} names the file {name!r}, which is not inside the folder")
