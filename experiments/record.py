"""Results of an experiment, recorded row by row, so that an interrupted one can be resumed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from experiments.configuration import Configuration, Configurations
from hwnas.atomic import locked, write_text
from hwnas.deploy.targets.machine import machine, processor_of, versions
from hwnas.errors import RunError

__all__ = ["Provenance", "Results", "Row", "git", "read_report", "read_rows"]

ROOT = Path(__file__).parents[1]
_CODE = ("src", ":(glob)experiments/**/*.py", ":(glob)experiments/**/*.toml")
_PACKAGES = ("numpy", "onnxruntime", "optuna", "ray", "scikit-learn", "torch", "triton")


@dataclass(frozen=True)
class Provenance:
    """Origin of a row.

    Attributes:
        config: Hash of all settings except the seed; the settings are in ``configurations.json``
            beside the rows.
        device: Processor and cores, and the GPU if there is one.
        versions: Versions of hwnas and of the libraries that matter, by name.
        commit: Commit of the repository; ends in ``-dirty`` if the package or code of an experiment
            has uncommitted changes. In a copy of the tree without a history, the value of
            ``HWNAS_COMMIT``.
        date: Time at which the row was recorded, ISO 8601.
    """

    config: str
    device: str
    versions: Mapping[str, str]
    commit: str
    date: str

    @classmethod
    def now(cls, config: str) -> Provenance:
        """Return the provenance of a row that is recorded here and now."""
        here = machine()
        parts = (here["processor"], here["cores"], processor_of("cuda"))
        return cls(
            config,
            ", ".join(filter(None, parts)),
            versions(_PACKAGES),
            _commit(),
            datetime.now(UTC).isoformat(timespec="milliseconds"),
        )


@dataclass(frozen=True)
class Row:
    """One recorded number.

    Attributes:
        metric: Quantity that was measured, e.g. ``"spearman"``.
        subject: Thing that was measured: a method, a side, the id of a network.
        seed: Seed of the experiment.
        value: The number; None where there is none, e.g. if no network is that fast.
        unit: ``"ms"``, ``"fraction"``, ``"ratio"``, ``"MB"``, ...
        n: Number of observations behind the number.
        spread: Quantiles, or another measure of the number's uncertainty.
        details: Further data of the row, as JSON values.
        provenance: Origin of the row, filled in when it is recorded.
    """

    metric: str
    subject: str
    seed: int
    value: float | None
    unit: str
    n: int
    spread: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    provenance: Provenance | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Identity of the row within one configuration: rows with the same key are the same row."""
        return self.metric, self.subject, self.seed


class Results:
    """Rows of one experiment under one configuration, in a file of JSON lines.

    Rows of other configurations stay in the file and are not visible here. Configurations with
    equal values are the same one, also if keys with defaults were added to recipes since. Every
    `put` replaces the file as a whole, under a lock, so several processes may record different
    seeds.

    Args:
        path: The file; created by the first `put`.
        config: All settings except the seed.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        self._configurations = Configurations(path.parent)
        self._settings = dict(config)
        self.config = self._configurations.hash_of(self._settings)

    @property
    def rows(self) -> list[Row]:
        """Rows of this configuration, in the order in which they were recorded."""
        return [row for row in read_rows(self.path) if _config(row) == self.config]

    def find(self, metric: str, subject: str, seed: int) -> Row | None:
        """Return the row with this key, or None if it is not recorded."""
        key = (metric, subject, seed)
        return next((row for row in self.rows if row.key == key), None)

    def put(self, rows: Iterable[Row]) -> None:
        """Record rows; each replaces an older row with the same key.

        Raises:
            RunError: The file is damaged.
            StorageError: The file cannot be written; the existing file is unchanged.
        """
        provenance = Provenance.now(self.config)
        new = [Row(**{**vars(row), "provenance": provenance}) for row in rows]
        with locked(self.path.parent):
            kept = {(_config(row), row.key): row for row in (*read_rows(self.path), *new)}
            lines = [json.dumps(asdict(row), ensure_ascii=False) for row in kept.values()]
            if self._configurations.get(self.config) is None:
                self._configurations.put(self.config, Configuration(self._settings))
            write_text(self.path, "".join(f"{line}\n" for line in lines))


def read_rows(path: Path) -> list[Row]:
    """Return all rows of a file, of every configuration; an empty list if there is no file.

    Raises:
        RunError: A line is damaged; the message names it.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            found = json.loads(line)
            rows.append(Row(**{**found, "provenance": Provenance(**found["provenance"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(
                f"{path}, line {number} is not a recorded row ({error}); restore the file with git"
            ) from error
    return rows


def read_report(path: Path) -> Provenance | None:
    """Return the provenance of a JSON file that holds one report instead of rows, or None."""
    found = json.loads(path.read_text(encoding="utf-8"))
    said = found.get("provenance") if isinstance(found, dict) else None
    return Provenance(**said) if isinstance(said, dict) else None


def _config(row: Row) -> str | None:
    return row.provenance.config if row.provenance else None


def git(*arguments: str) -> str | None:
    """Return the output of a git command on this repository.

    Args:
        arguments: Arguments of git, e.g. ``"rev-parse", "HEAD"``.

    Returns:
        The text, or None where git fails or is not installed, or where the tree is a copy without a
        history or inside another repository.
    """
    return _git(ROOT, *arguments) if _has_history(ROOT) else None


@cache
def _has_history(root: Path) -> bool:
    top = _git(root, "rev-parse", "--show-toplevel")
    return top is not None and Path(top).resolve() == root.resolve()


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return None
    return None if found.returncode else found.stdout.strip()


@cache
def _commit() -> str:
    found = git("rev-parse", "--short=12", "HEAD")
    if found is None:
        return os.environ.get("HWNAS_COMMIT", "unknown")
    changed = git("status", "--porcelain", "--untracked-files=all", "--", *_CODE)
    return f"{found}-dirty" if changed else found
