"""Sealed folders: a description that lists checksums, and a list of the checksums of all files."""

from __future__ import annotations

import hashlib
import json
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hwnas.atomic import recovered_folder, write_json, write_text
from hwnas.deploy.bundles.checksums import inside, read_sums, render_sums, sha256
from hwnas.deploy.error_line import first_line
from hwnas.errors import ArtifactError, DataError

__all__ = ["Seal", "SealCheck", "checked", "give_usual_modes", "passed"]


@dataclass(frozen=True)
class SealCheck:
    """Result of one check.

    Attributes:
        name: Name of the file, or of what was checked.
        ok: True if the check passed.
        detail: Result in one line.
        warns: True if the detail is a warning, although the check passed.
    """

    name: str
    ok: bool
    detail: str
    warns: bool = False


def checked(name: str, look: Callable[[], str]) -> SealCheck:
    """Run a function that checks something, and return the result as a check.

    Args:
        name: Name of the check.
        look: Function that returns the detail of the check. The check fails if it raises an
            ArtifactError or a DataError.
    """
    try:
        return SealCheck(name, True, look())
    except (ArtifactError, DataError) as error:
        return SealCheck(name, False, str(error))


def passed(what: str, checks: Sequence[SealCheck]) -> list[SealCheck]:
    """Return the checks if every one of them passed.

    Raises:
        ArtifactError: A check failed; the message names the first file that is wrong.
    """
    for check in checks:
        if not check.ok:
            raise ArtifactError(f"{what}: {check.name}: {check.detail}")
    return list(checks)


def give_usual_modes(folder: Path) -> None:
    """Give all files in a folder the permissions that a new file gets there.

    Libraries write files that only their owner may read, and copies keep the permissions of the
    originals. Whoever may read the folder should be able to read all of it.

    Raises:
        OSError: The permissions cannot be changed.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        new = Path(place, "new")
        new.touch()
        mode = stat.S_IMODE(new.stat().st_mode)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


@dataclass(frozen=True)
class Seal:
    """Names and schema of the description and of the list of checksums of one kind of folder.

    Attributes:
        kind: Kind of folder, in one word.
        description: Name of the JSON file that describes the folder.
        sums: Name of the file with the checksums of all other files.
        schema: Schema version of the description.
    """

    kind: str
    description: str
    sums: str
    schema: int

    def fingerprint(self, folder: Path, names: Iterable[str]) -> bytes:
        """Return a hash of the contents of files, by which results of the folder are told apart.

        Args:
            folder: Folder of the files; a missing file counts as such.
            names: Names of the files.
        """
        paths = {name: inside(folder, name) for name in sorted(names)}
        sums = {name: sha256(p) if p.is_file() else "" for name, p in paths.items()}
        return hashlib.sha256(json.dumps(sums).encode()).digest()

    def read(self, folder: Path) -> dict[str, Any]:
        """Return the description of a folder.

        Raises:
            ArtifactError: There is no description, it is damaged, or it was written by a newer
                version.
        """
        path = recovered_folder(Path(folder)) / self.description
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            json.dumps(found, ensure_ascii=False).encode()  # fails for unpaired surrogates
        except FileNotFoundError:
            raise ArtifactError(
                f"{folder} is not a {self.kind}: it has no {self.description}"
            ) from None
        except NotADirectoryError:
            raise ArtifactError(
                f"{folder} is not a {self.kind} but a file; give the folder of a {self.kind}"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ArtifactError(f"{path} is damaged: {first_line(error)}") from error
        schema = found.get("schema") if isinstance(found, dict) else None
        if schema != self.schema:
            raise ArtifactError(
                f"{path} has schema {schema!r}, but this hwnas reads {self.schema}; "
                "use the version that wrote it"
            )
        described: dict[str, Any] = found
        return described

    def write(self, folder: Path, description: Mapping[str, Any], sums: Mapping[str, str]) -> None:
        """Write the description, then the checksums of it and of all other files.

        Args:
            folder: Folder that holds all other files.
            description: Contents of the description.
            sums: SHA-256 checksums of the other files, by name.
        """
        write_json(folder / self.description, description)
        all_sums = {**sums, self.description: sha256(folder / self.description)}
        write_text(folder / self.sums, render_sums(all_sums))
        give_usual_modes(folder)

    def checks(self, folder: Path, sums: Mapping[str, str]) -> list[SealCheck]:
        """Check the checksums of all files.

        Args:
            folder: Folder of the files.
            sums: SHA-256 checksums of all files that the description lists, by name.
        """
        files = sorted([self.description, *sums])
        return [
            checked(self.sums, partial(self._check_list, folder, files)),
            *(checked(name, partial(self._check_sum, folder, name, sums)) for name in files),
        ]

    def _check_list(self, folder: Path, files: Sequence[str]) -> str:
        listed = set(read_sums(folder / self.sums))
        if listed != set(files):
            odd = ", ".join(sorted(listed ^ set(files)))
            raise ArtifactError(f"it and {self.description} do not list the same files: {odd}")
        return f"lists {len(listed)} files"

    def _check_sum(self, folder: Path, name: str, sums: Mapping[str, str]) -> str:
        found = sha256(inside(folder, name))
        listed = read_sums(folder / self.sums).get(name)
        if found != listed or found != sums.get(name, found):
            raise ArtifactError("its SHA-256 is not the recorded one; it was changed or damaged")
        return f"SHA-256 {found[:12]}..."
