"""One visit to a machine with a card: what is known by now, where it is kept, what time is left."""

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
"""Of the time, for the stages that are wanted, in their order."""
_EACH = 60.0  # seconds for one piece of work
_SECONDS = 2.0  # for which rows may be in memory only


@dataclass
class Visit:
    """What is done, and where it is recorded.

    Attributes:
        place: The card.
        folder: Where rows go.
        stages: Some of `SHARES`.
        operators: Names of those that are looked at.
        networks: Likewise.
        end: On `time.monotonic`.
        about: Networks by name, once they are exported.
        layers: What these networks ask of operators.
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
        card, simulated = self.place.card.name, self.place.simulated
        config = {"experiment": "kernels", "card": card, "simulated": simulated}
        prefix = "simulated-" if simulated else ""
        self.observations = Results(self.folder / f"{prefix}observations.jsonl", config)
        self.answers = Results(self.folder / f"{prefix}results.jsonl", config)
        self._rows = {(row.metric, row.subject): row for row in self.observations.rows}
        self._unwritten: list[Row] = []
        self._written = time.monotonic()

    def until(self, stage: str) -> float:
        """The end of a stage, by the shares of it and of those after it."""
        names = list(SHARES)
        later = [name for name in names[names.index(stage) :] if name in self.stages]
        now = time.monotonic()
        share = SHARES[stage] / max(SHARES[stage], sum(SHARES[name] for name in later))
        return now + share * max(0.0, self.end - now)

    def in_turn(
        self, tasks: Sequence[Task], until: float, each: float = _EACH
    ) -> Iterator[Outcome]:
        """Nothing runs beside what is timed."""
        return in_processes(self.place, [tasks], until, each)

    def side_by_side(
        self, tasks: Sequence[Task], until: float, each: float = _EACH
    ) -> Iterator[Outcome]:
        """As many at once as the machine has cores; neighbours in one process where possible."""
        return in_processes(self.place, dealt(tasks, self.place.workers), until, each)

    @property
    def rows(self) -> list[Row]:
        """All that was observed."""
        return list(self._rows.values())

    def try_processes(self) -> None:
        """Find out whether a process that is forked can use the card, or has to be a new one."""
        until = min(self.end, time.monotonic() + _EACH)
        [outcome] = self.in_turn([Task(Place.touch, None)], until)
        if outcome.reason:
            print(f"forked processes cannot use the card ({outcome.reason}); others are slower")
            self.place = replace(self.place, start="spawn")

    def row(self, metric: str, subject: str) -> Row | None:
        """What is recorded of something, unless that is only why it is not."""
        found = self._rows.get((metric, subject))
        return found if found is not None and found.value is not None else None

    def put(self, rows: Sequence[Row]) -> None:
        """Record rows within seconds, and show them in a line each."""
        for row in map(self._marked, rows):
            self._rows[row.metric, row.subject] = row
            self._unwritten.append(row)
            reason = row.details.get("reason", "")
            value = "-" if row.value is None else f"{row.value:.3g} {row.unit}"
            print(f"{row.metric}, {row.subject}: {value}{reason and f' ({reason})'}", flush=True)
        if time.monotonic() - self._written > _SECONDS:
            self.write()

    def write(self) -> None:
        """Record what is not yet: a file is written as a whole, so not for each row."""
        if self._unwritten:
            self.observations.put(self._unwritten)
        self._unwritten, self._written = [], time.monotonic()

    def answer(self, rows: Sequence[Row]) -> None:
        """Record what follows from all rows by now."""
        self.answers.put(map(self._marked, rows))

    def _marked(self, row: Row) -> Row:
        """What was invented says so."""
        if not self.place.simulated:
            return row
        details = {**row.details, "simulated": True}
        return replace(row, unit=f"{row.unit} (simulated)", details=details)
