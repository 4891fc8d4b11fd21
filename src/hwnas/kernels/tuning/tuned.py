"""Tuning results of one GPU, stored in a file that people can read.

Results that are shipped with hwnas are in ``hwnas/kernels/tuned/<gpu>.json``. The user's own, in
``$HWNAS_HOME/kernels/<gpu>.json``, take precedence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hwnas.atomic import write_json
from hwnas.errors import ArtifactError
from hwnas.home import home
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.suite.timer import Times

__all__ = ["KERNEL", "REFERENCE", "TunedEntry", "TunedTable", "own_path", "shipped_path"]

SCHEMA = 1
KERNEL = "triton"
REFERENCE = "reference"  # rival that an operator falls back on


@dataclass(frozen=True)
class TunedEntry:
    """Best configuration of an operator at some sizes.

    Attributes:
        operator: Name of the operator.
        dtype: Type of the first input, such as ``"float16"``.
        sizes: Sizes of the inputs.
        config: Configuration of the kernels.
        times: Times of the kernels.
        timing: Timing method of kernels and rivals, in words.
        rivals: Times of other implementations, by name; `REFERENCE` is the operator's own reference
            in PyTorch.
        versions: Versions of Triton, PyTorch and the driver.
        date: Date and time in ISO 8601.
    """

    operator: str
    dtype: str
    sizes: Mapping[str, int] = field(hash=False)
    config: Mapping[str, int] = field(hash=False)
    times: Times
    timing: str
    rivals: Mapping[str, Times] = field(hash=False)
    versions: Mapping[str, str] = field(hash=False)
    date: str

    @property
    def fastest(self) -> str:
        """Name of the fastest implementation: `KERNEL`, or a rival that is faster."""
        rivals = {name: times.p50_us for name, times in self.rivals.items()}
        everyone = {KERNEL: self.times.p50_us, **rivals}
        return min(everyone, key=everyone.__getitem__)

    @property
    def beats_reference(self) -> bool:
        """True if the kernels are at least as fast as the reference, or it was not timed."""
        rival = self.rivals.get(REFERENCE)
        return rival is None or self.times.p50_us <= rival.p50_us

    def distance(self, sizes: Mapping[str, int]) -> float:
        """Return the distance to other sizes in powers of two; infinite if the names differ."""
        if set(sizes) != set(self.sizes):
            return math.inf
        return math.hypot(*(math.log2((1 + sizes[n]) / (1 + self.sizes[n])) for n in sizes))

    def replaces(self, other: TunedEntry) -> bool:
        """Return whether the operator, type and sizes are those of another entry."""
        mine, others = ((e.operator, e.dtype, dict(e.sizes)) for e in (self, other))
        return mine == others

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, with times in microseconds, and with `fastest` for its readers."""
        return {
            "operator": self.operator,
            "dtype": self.dtype,
            "sizes": dict(self.sizes),
            "config": dict(self.config),
            "fastest": self.fastest,
            "times": self.times.to_json(),
            "rivals": {name: times.to_json() for name, times in self.rivals.items()},
            "timing": self.timing,
            "versions": dict(self.versions),
            "date": self.date,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TunedEntry:
        """Restore an entry from an object of `to_json`."""
        return cls(
            operator=str(data["operator"]),
            dtype=str(data["dtype"]),
            sizes={str(name): int(size) for name, size in data["sizes"].items()},
            config={str(name): int(value) for name, value in data["config"].items()},
            times=Times.from_json(data["times"]),
            timing=str(data["timing"]),
            rivals={name: Times.from_json(times) for name, times in data["rivals"].items()},
            versions={str(name): str(version) for name, version in data["versions"].items()},
            date=str(data["date"]),
        )


@dataclass(frozen=True)
class TunedTable:
    """Tuning results of one GPU.

    Attributes:
        device: Name of the GPU that the driver reports.
        entries: Entries, at most one for each operator, type and sizes.
    """

    device: str
    entries: tuple[TunedEntry, ...] = ()

    @classmethod
    def read(cls, path: Path, gpu: Accelerator) -> TunedTable:
        """Return the results of a GPU from a file; empty if there is no file.

        Raises:
            ArtifactError: The file is damaged, of another version of hwnas, or of another GPU.
        """
        if not path.exists():
            return cls(gpu.name)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            schema, device = data["schema"], str(data["device"])
            found = tuple(map(TunedEntry.from_json, data["entries"] if schema == SCHEMA else ()))
        except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(
                f"{path} is not a file of tuning results ({type(error).__name__}: {error}). Delete "
                "it and tune again"
            ) from error
        if schema != SCHEMA:
            raise ArtifactError(
                f"{path}: schema {schema!r} is not {SCHEMA}; use the hwnas version that wrote it"
            )
        if device != gpu.name:
            raise ArtifactError(
                f"{path} holds results of {device!r}, expected {gpu.name!r}; results of one GPU "
                "do not apply to another. Delete it and tune again"
            )
        return cls(device, found)

    def write(self, path: Path) -> None:
        """Write the file atomically, with operators and sizes in order.

        Raises:
            StorageError: The file cannot be written.
        """
        entries = sorted(self.entries, key=lambda e: (e.operator, e.dtype, [*e.sizes.values()]))
        rows = [entry.to_json() for entry in entries]
        write_json(path, {"schema": SCHEMA, "device": self.device, "entries": rows})

    def with_entry(self, entry: TunedEntry) -> TunedTable:
        """Return the table with an entry, which replaces an older one."""
        others = (other for other in self.entries if not entry.replaces(other))
        return TunedTable(self.device, (*others, entry))

    def over(self, other: TunedTable) -> TunedTable:
        """Return the entries of this table, and those of another table that they do not replace."""
        merged = other
        for entry in self.entries:
            merged = merged.with_entry(entry)
        return merged

    def nearest(self, operator: str, dtype: str, sizes: Mapping[str, int]) -> list[TunedEntry]:
        """Return the entries of an operator and type, those of the nearest sizes first."""
        near = [e for e in self.entries if (e.operator, e.dtype) == (operator, dtype)]
        near = [entry for entry in near if math.isfinite(entry.distance(sizes))]
        return sorted(near, key=lambda entry: entry.distance(sizes))


def own_path(gpu: Accelerator) -> Path:
    """Return the path of the user's own results."""
    return home() / "kernels" / f"{gpu.key}.json"


def shipped_path(gpu: Accelerator) -> Path:
    """Return the path of the shipped results; the file exists for some GPUs only."""
    return Path(__file__).parents[1] / "tuned" / f"{gpu.key}.json"
