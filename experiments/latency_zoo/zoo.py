"""Recorded measurements as device profiles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from experiments.latency_zoo.run import FOLDER, space
from hwnas.deploy import Target
from hwnas.predictors.devices.store import DeviceProfile
from hwnas.search_spaces import Architecture, OperatorCountTable, Workload

__all__ = ["read_workloads", "read_zoo"]

Rows = dict[str, dict[str, Any]]
"""Recorded rows by network."""


def read_zoo(path: Path = FOLDER / "zoo.parquet") -> list[DeviceProfile]:
    """Return one profile for each target, all of the same networks in the same order.

    A target that was not measured on all networks is left out.
    """
    rows = _rows(path)
    networks = _networks(rows)
    complete = {name: found for name, found in rows.items() if found.keys() == networks.keys()}
    steps = OperatorCountTable.of_workloads(_workloads(networks))
    names = tuple(networks)
    return [
        _profile(name, names, steps, [found[n] for n in names]) for name, found in complete.items()
    ]


def read_workloads(path: Path = FOLDER / "zoo.parquet") -> list[Workload]:
    """Return the networks of `read_zoo`, in its order."""
    return _workloads(_networks(_rows(path)))


def _rows(path: Path) -> dict[str, Rows]:
    """Return the recorded rows by target."""
    rows: dict[str, Rows] = {}
    for row in pq.read_table(path).to_pylist():
        rows.setdefault(row["target"], {})[row["network"]] = row
    return rows


def _networks(rows: dict[str, Rows]) -> Rows:
    return max(rows.values(), key=len)


def _workloads(networks: Rows) -> list[Workload]:
    made = space()
    described = [json.loads(row["architecture"]) for row in networks.values()]
    return [made.workload(Architecture.from_json(each)) for each in described]


def _profile(
    name: str, networks: tuple[str, ...], steps: OperatorCountTable, rows: Sequence[dict[str, Any]]
) -> DeviceProfile:
    last = rows[-1]
    return DeviceProfile(
        name,
        networks=networks,
        steps=steps,
        costs=np.array([row["latency_ms"] for row in rows]),
        space=space().fingerprint,
        hardware=last["hardware"],
        runtime=Target.parse(name).device.runtime,
        clock=last["clock"],
        versions=json.loads(last["versions"]),
        time=last["time"],
    )
