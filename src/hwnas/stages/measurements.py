"""Table of all latency measurements of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet

from hwnas.atomic import replacing
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.errors import RunError
from hwnas.search_spaces import Architecture

__all__ = ["MEASUREMENTS", "Timed", "measured_on", "read_measurements", "write_measurements"]

MEASUREMENTS = "measurements.parquet"
"""Name of the table in the folder of the results of a run or of one of its targets."""

Role = Literal["calibration", "finalist"]


@dataclass(frozen=True)
class Timed:
    """Measurement of a network, with its role in the run.

    Attributes:
        architecture: Architecture of the network.
        role: Role: ``"finalist"``, or ``"calibration"`` of the predictor in runs of hwnas 0.1.
        measurement: Latency measurement.
    """

    architecture: Architecture
    role: Role
    measurement: Measurement

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the fields."""
        return {
            "architecture": self.architecture.to_json(),
            "role": self.role,
            "measurement": self.measurement.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timed:
        """Return the measurement that `to_json` described."""
        return cls(
            Architecture.from_json(data["architecture"]),
            data["role"],
            Measurement.from_json(data["measurement"]),
        )


def measured_on(rows: Iterable[Timed]) -> list[str]:
    """Return the names of the processors that the rows were measured on, each once, sorted."""
    return sorted({row.measurement.hardware for row in rows})


def read_measurements(path: Path) -> list[Timed]:
    """Return all rows of the table; none if there is no file.

    Raises:
        RunError: The file is damaged.
    """
    if not path.exists():
        return []
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
        return [
            Timed(
                Architecture.from_json(json.loads(row["architecture"])),
                row["role"],
                Measurement.from_json(json.loads(row["measurement"])),
            )
            for row in rows
        ]
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path} is damaged ({error}); remove it and `hwnas resume` the run, which times its "
            "networks again"
        ) from error


def write_measurements(path: Path, role: Role, new: Sequence[Timed]) -> None:
    """Write rows to the table; they replace all older rows of their role, even if there are none.

    Args:
        path: Path of the table, which is created if it does not exist.
        role: Role of all the rows.
        new: Rows to write, each of another network or target.
    """
    rows = [*(row for row in read_measurements(path) if row.role != role), *new]
    table = pyarrow.Table.from_pylist([_columns(row) for row in rows])
    with replacing(path) as temporary:
        pyarrow.parquet.write_table(table, temporary)


def _columns(row: Timed) -> dict[str, object]:
    m = row.measurement
    return {
        "id": row.architecture.id,
        "role": row.role,
        "target": m.target,
        "clock": m.clock,
        "latency_ms": m.latency_ms,
        **{f"cpu_{q}_ms": getattr(m.cpu_ms, q) for q in ("p20", "p50", "p80")},
        **{f"wall_{q}_ms": getattr(m.wall_ms, q) for q in ("p20", "p50", "p80")},
        "n": m.n,
        "contended": m.contended,
        "anchor_ms": m.anchor_ms,
        "hardware": m.hardware,
        "time": m.time,
        "architecture": json.dumps(row.architecture.to_json()),
        "measurement": json.dumps(m.to_json()),
    }
