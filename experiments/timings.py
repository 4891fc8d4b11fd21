"""Recorded timings: a parquet file with one row for each measurement on a target."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hwnas.atomic import replacing
from hwnas.deploy import Measurement

__all__ = ["Timings", "columns_of"]


class Timings:
    """Rows of a parquet file of timings.

    Args:
        path: The parquet file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[dict[str, Any]] = pq.read_table(path).to_pylist() if path.exists() else []

    def put(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows and replace the file as a whole."""
        self.rows += rows
        with replacing(self._path) as temporary:
            pq.write_table(pa.Table.from_pylist(self.rows), temporary, compression="zstd")


def columns_of(measurement: Measurement, rounds: str) -> dict[str, Any]:
    """Return the columns of a measurement that are the same for every kind of row.

    Args:
        measurement: Measurement on one target.
        rounds: Name of the column for the number of rounds.
    """
    return {
        "target": measurement.target,
        "latency_ms": measurement.latency_ms,
        "clock": measurement.clock,
        **{f"cpu_{k}_ms": v for k, v in vars(measurement.cpu_ms).items()},
        **{f"wall_{k}_ms": v for k, v in vars(measurement.wall_ms).items()},
        rounds: measurement.n,
        "contended": measurement.contended,
        "anchor_ms": measurement.anchor_ms,
        "hardware": measurement.hardware,
        "versions": json.dumps(dict(measurement.versions), sort_keys=True),
        "time": measurement.time,
    }
