"""One visit to a machine with a GPU: known results, their files, and the remaining time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.kernels.benchmark import Case
from experiments.kernels.place import Place
from experiments.kernels.pool import Outcome, Task, dealt, in_processes
from experiments.record import Results, Row

__all__ = ["SHARES", "Visit"]

SHARES = {"verify": 1.2, "tune": 4.0, "operators": 3.0, "networks": 2.5}
"""Weights of the stages in the available time, in the order of the stages."""
_EACH = 60.0  # time limit of one task, in seconds
_SECONDS = 2.0  # longest time that rows are kept in memory only, in seconds


@dataclass
class Visit:
    """Work and records of one visit.

    Attributes:
        place: Place with the GPU.
        folder: Folder for rows.
        stages: Wanted stages, some of `SHARES`.
        operators: Names of the wanted operators.
        networks: Names of the wanted networks.
        end: Time of `time.monotonic` at which the visit ends.
        about: Descriptions of the exported networks, by name.
        layers: Operator cases that these networks need.
    """

    place: Place
    folder: Path
    stages: Sequence[str]
    operators: Sequence[str]
    networks: Sequence[str]
    end: float
    about: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    layers: list[Case] = field(default_factory=list)

    def __post_init__(self) -> None:
        gpu, simulated = self.place.gpu.name, self.place.simulated
        config = {"experiment": "kernels", "card": gpu, "simulated": simulated}
        prefix = "simulated-" if simulated else ""
        self.observations = Results(self.folder / f"{prefix}observations.jsonl", config)
        self.answers = Results(self.folder / f"{prefix}results.jsonl", config)
        self._rows = {(row.metric, row.subject): row for row in self.observations.rows}
        self._unwritten: list[Row] = []
        self._written = time.monotonic()

    def until(self, stage: str) -> float:
        """Return the time at which a stage ends, from its weight and those of later stages."""
        names = list(SHARES)
        later = [name for name in names[names.index(stage) :] if name in self.stages]
        now = time.monotonic()
        share = SHARES[stage] / max(SHARES[stage], sum(SHARES[name] for name in later))
        return now + share * max(0.0, self.end - now)

    def in_turn(
        self, tasks: Sequence[Task], until: float, each: float = _EACH
    ) -> Iterator[Outcome]:
        """Run tasks one by one, so that nothing runs beside what is timed."""
        return in_processes(self.place, [tasks], until, each)

    def side_by_side(
        self, tasks: Sequence[Task], until: float, each: float = _EACH
    ) -> Iterator[Outcome]:
        """Run tasks in parallel on the cores; neighbours share a process where possible."""
        return in_processes(self.place, dealt(tasks, self.place.workers), until, each)

    @property
    def rows(self) -> list[Row]:
        """All observed rows."""
        return list(self._rows.values())

    def try_processes(self) -> None:
        """Check that a forked process can use the GPU; otherwise, use spawned processes."""
        until = min(self.end, time.monotonic() + _EACH)
        [outcome] = self.in_turn([Task(Place.touch, None)], until)
        if outcome.reason:
            print(
                f"forked processes cannot use the GPU ({outcome.reason}); spawned ones start slower"
            )
            self.place = replace(self.place, start="spawn")

    def row(self, metric: str, subject: str) -> Row | None:
        """Return a recorded row; None if there is none, or if it holds only a failure's reason."""
        found = self._rows.get((metric, subject))
        return found if found is not None and found.value is not None else None

    def put(self, rows: Sequence[Row]) -> None:
        """Record rows within seconds, and print a line for each."""
        for row in map(self._marked, rows):
            self._rows[row.metric, row.subject] = row
            self._unwritten.append(row)
            reason = row.details.get("reason", "")
            value = "-" if row.value is None else f"{row.value:.3g} {row.unit}"
            print(f"{row.metric}, {row.subject}: {value}{reason and f' ({reason})'}", flush=True)
        if time.monotonic() - self._written > _SECONDS:
            self.write()

    def write(self) -> None:
        """Write all unwritten rows; a file is written as a whole, so not once for each row."""
        if self._unwritten:
            self.observations.put(self._unwritten)
        self._unwritten, self._written = [], time.monotonic()

    def answer(self, rows: Sequence[Row]) -> None:
        """Record the answers that follow from all rows so far."""
        self.answers.put(map(self._marked, rows))

    def _marked(self, row: Row) -> Row:
        """Mark a row as simulated if its value was invented."""
        if not self.place.simulated:
            return row
        details = {**row.details, "simulated": True}
        return replace(row, unit=f"{row.unit} (simulated)", details=details)
