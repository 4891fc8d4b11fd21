"""HELP's tables, with a spec sheet for each column."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.command import data_folder
from hwnas.predictors.benchmarks.cost_table import CostTable, read_cost_table
from hwnas.predictors.devices.spec_sheet import SpecSheet
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces import OperatorCountTable

__all__ = ["POOL", "Column", "Table", "read_table", "spec_sheets"]

FOLDER = Path(__file__).parent
POOL = 900  # first rows of a table, known on the known devices; others are asked
_MOST_ASKED = 3000
_SAME = {"titan_xp": "titanxp"}


@dataclass(frozen=True)
class Column:
    """Column of a table.

    Attributes:
        device: Name in the table.
        spec: Spec sheet of the hardware.
        batch: Images in a batch.
    """

    device: str
    spec: SpecSheet
    batch: int

    @property
    def hardware(self) -> str:
        """Name of the hardware, which columns of several batches share."""
        return self.spec.name

    @property
    def description(self) -> Numbers:
        """Logarithms of the numbers of the spec sheet and of the batch, of shape (7,)."""
        found: Numbers = np.append(self.spec.description, np.log(self.batch))
        return found


@dataclass(frozen=True, eq=False)
class Table:
    """Latencies of known and asked networks on the devices that have a spec sheet.

    Attributes:
        columns: Columns of the devices, K of them.
        known: Operator counts of the N known networks.
        asked: Operator counts of the M asked networks.
        known_ms: Latencies of the known networks, of shape (N, K).
        asked_ms: Latencies of the asked networks, of shape (M, K).
    """

    columns: tuple[Column, ...]
    known: OperatorCountTable
    asked: OperatorCountTable
    known_ms: Numbers
    asked_ms: Numbers


def spec_sheets() -> dict[str, SpecSheet]:
    """Return the spec sheets by hardware."""
    found = tomllib.loads((FOLDER / "sheets.toml").read_text(encoding="utf-8"))
    return {name: SpecSheet.from_values({"name": name, **each}) for name, each in found.items()}


def read_table(name: str) -> Table:
    """Return a table of HELP by the name of its space: nasbench201, fbnet or ofa_mbv3."""
    table = read_cost_table(data_folder() / "latency" / f"{name}_latency_help.npz")
    columns = _columns(table)
    rows = np.flatnonzero(table.space.connected(table.codes))
    known, asked = rows[rows < POOL], rows[rows >= POOL][:_MOST_ASKED]
    places = [table.column(each.device) for each in columns]
    steps = table.space.steps(table.codes)
    assert steps is not None  # the three spaces describe their operators
    return Table(
        columns,
        steps.rows(known),
        steps.rows(asked),
        table.costs[np.ix_(known, places)],
        table.costs[np.ix_(asked, places)],
    )


def _columns(table: CostTable) -> tuple[Column, ...]:
    sheets, found = spec_sheets(), []
    for device in table.devices:
        parts = re.fullmatch(r"(.+?)(?:_(1|32|64|256))?", device)
        assert parts is not None  # the pattern fits every name
        hardware, batch = parts.groups()
        if device in sheets:  # essential_ph_1 ends like a batch
            hardware, batch = device, None
        hardware = _SAME.get(hardware, hardware)
        if hardware in sheets:
            found.append(Column(device, sheets[hardware], int(batch or 1)))
    return tuple(found)
