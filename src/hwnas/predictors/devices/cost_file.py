"""CSV file of costs that were measured elsewhere, with a network and its costs on each line."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hwnas.deploy.onnx.workload import read_workload
from hwnas.errors import ConfigError, DataError, HwnasError
from hwnas.predictors.devices.device import MINIMUM_MEASUREMENTS
from hwnas.predictors.devices.store import METRICS, CostMetric
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces import Architecture, OperatorCountTable, SearchSpace

__all__ = ["CostFile", "read_architecture", "read_cost_file"]

_CONTRADICTION = 1.1  # largest over smallest cost of one network, from which a note is given


@dataclass(frozen=True, eq=False)
class CostFile:
    """Contents of a file of costs.

    Attributes:
        networks: Names of the networks, each once.
        steps: Operator counts of the networks, at batch 1.
        costs: Costs of shape (n,), for each metric that the file has.
        notes: Remarks on networks whose lines differ, of which the median is used, in words.
    """

    networks: tuple[str, ...]
    steps: OperatorCountTable
    costs: Mapping[CostMetric, Numbers]
    notes: tuple[str, ...] = ()


def read_cost_file(path: Path, space: SearchSpace | None = None) -> CostFile:
    """Read a CSV file with the column ``network`` and one or more of `METRICS`.

    A network is the path of an ONNX file, or of a JSON file with an architecture, relative to the
    CSV file; or the JSON text of an architecture. If several lines name the same network, the
    median of their costs is used.

    Args:
        path: Path of the CSV file.
        space: Space of the architectures; not needed for ONNX files.

    Raises:
        DataError: The file is missing or is no such table, a cost is not a positive number, or
            there are fewer than three networks.
    """
    lines = _lines(path)
    metrics = _metrics(path, lines)
    networks = _networks(path, lines, space)
    together: dict[str, list[int]] = {}
    for index, (name, _) in enumerate(networks):
        together.setdefault(name, []).append(index)
    if len(together) < MINIMUM_MEASUREMENTS:
        raise DataError(
            f"{path} has {len(together)} different networks; a prediction needs at least "
            f"{MINIMUM_MEASUREMENTS}"
        )
    notes = []
    costs: dict[CostMetric, Numbers] = {}
    for metric in metrics:
        values = [_cost(path, number, line, metric) for number, line in enumerate(lines, start=2)]
        notes += _contradictions(lines, together.values(), values, metric)
        costs[metric] = np.array(
            [statistics.median(values[i] for i in same) for same in together.values()]
        )
    steps = [networks[same[0]][1] for same in together.values()]
    return CostFile(tuple(together), OperatorCountTable.stacked(steps), costs, tuple(notes))


def _lines(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise DataError(f"there is no table {path}; give the path of a CSV file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return [dict(line) for line in csv.DictReader(file, restkey="", restval="")]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file: {error}") from error


def _metrics(path: Path, lines: Sequence[Mapping[str, str]]) -> list[CostMetric]:
    columns = list(lines[0]) if lines else []
    metrics = [metric for metric in METRICS if metric in columns]
    if "network" not in columns or not metrics:
        found = ", ".join(columns) or "no lines"
        raise DataError(
            f"{path} has {found}; expected the column network and at least one of "
            f"{', '.join(METRICS)}"
        )
    return metrics


def _cost(path: Path, number: int, line: Mapping[str, str], metric: CostMetric) -> float:
    text = line[metric].strip()
    try:
        cost = float(text)
    except ValueError:
        cost = math.nan
    if not (math.isfinite(cost) and cost > 0):
        raise DataError(
            f"{path}, line {number}: {metric} is {text!r}; expected a positive number. Remove the "
            "line if the network was not measured"
        )
    return cost


def _networks(
    path: Path, lines: Sequence[Mapping[str, str]], space: SearchSpace | None
) -> list[tuple[str, OperatorCountTable]]:
    """Return for each line the network's id, equal for equal networks, and its operator counts."""
    read: dict[str, tuple[str, OperatorCountTable]] = {}
    for number, line in enumerate(lines, start=2):
        text = line["network"].strip()
        try:
            if text not in read:
                read[text] = _network(path.parent, text, space)
        except HwnasError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
    return [read[line["network"].strip()] for line in lines]


def _network(folder: Path, text: str, space: SearchSpace | None) -> tuple[str, OperatorCountTable]:
    if not text.startswith("{") and not text.endswith(".json"):
        found = read_workload(folder / text)
        return found.workload.id, found.steps
    if space is None:
        raise ConfigError("the network is an architecture; name its space with --space")
    architecture = space.check(read_architecture(folder, text))
    return architecture.id, space.operator_counts([architecture])


def read_architecture(folder: Path, text: str) -> Architecture:
    """Read an architecture from JSON, or from a file with JSON.

    Raises:
        ConfigError: The text or file is not an architecture.
    """
    try:
        found = text if text.startswith("{") else (folder / text).read_text(encoding="utf-8")
        return Architecture.from_json(json.loads(found))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{text} cannot be read as an architecture: {error}") from error


def _contradictions(
    lines: Sequence[Mapping[str, str]],
    groups: Iterable[Sequence[int]],
    values: Sequence[float],
    metric: CostMetric,
) -> list[str]:
    notes = []
    for same in groups:
        some = [values[i] for i in same]
        if max(some) > _CONTRADICTION * min(some):
            notes.append(
                f"{lines[same[0]]['network']} has {len(some)} values of {metric} from "
                f"{min(some):g} to {max(some):g}; their median counts"
            )
    return notes
