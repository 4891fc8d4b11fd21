"""Which candidates become finalists: those that deliver what the search expected of them.

The first choice shows the whole front. Where one of it fails, or does not keep a limit once it is
measured, the next candidate takes its place, a few rounds at most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from hwnas.atomic import write_json
from hwnas.errors import (
    ConfigError,
    DataError,
    DeviceError,
    HwnasError,
    RunError,
    StorageError,
    WorkerError,
)
from hwnas.search import Scored, SearchResult
from hwnas.search.front import pick_spread
from hwnas.search.objective import LATENCY, Objective, weighed
from hwnas.stages.limits import LimitCheck, LimitState, overall, shortfall, told

__all__ = [
    "SHORTLIST",
    "Made",
    "Shortlist",
    "TriedFinalist",
    "choose",
    "fill_shortlist",
    "is_own_fault",
    "read_tried",
]

SHORTLIST = "finalists.json"
SCHEMA = 1
REPLACEMENT_ROUNDS = 2
_NOBODYS_FAULT = (ConfigError, DataError, DeviceError, RunError, StorageError, WorkerError)
"""Of the recipe or the machine: no other candidate would fare better."""

Made = Mapping[str, tuple[LimitCheck, ...] | HwnasError]
"""What became of some candidates, by id: what they deliver, or why they could not be made."""


@dataclass(frozen=True)
class TriedFinalist:
    """A candidate that was made into a finalist, or should have been.

    Attributes:
        id: Of the candidate.
        round: 0 for the first choice, then that of its replacements.
        state: Whether it keeps the limits; ``failed`` if it could not be made.
        packed: Whether it is a finalist in the end.
        limits: Each limit beside what it delivers.
        reason: Why it failed.
    """

    id: str
    round: int
    state: LimitState | Literal["failed"]
    packed: bool
    limits: tuple[LimitCheck, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Shortlist:
    """All candidates that were tried, in that order."""

    tried: tuple[TriedFinalist, ...]

    @property
    def packed(self) -> list[str]:
        """Ids of the finalists."""
        return [each.id for each in self.tried if each.packed]

    def write(self, folder: Path) -> None:
        """Write ``finalists.json`` into the folder of a search's results."""
        rows = [asdict(each) for each in self.tried]
        write_json(folder / SHORTLIST, {"schema": SCHEMA, "tried": rows})


def read_tried(folder: Path) -> tuple[TriedFinalist, ...]:
    """Which candidates were tried; none where the run is of a version that did not record it.

    Raises:
        RunError: The file is damaged.
    """
    path = folder / SHORTLIST
    if not path.exists():
        return ()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']!r} is not {SCHEMA}")
        return tuple(_tried(row) for row in found["tried"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(
            f"{path} is damaged ({reason}); remove it together with {folder / 'bundles'} and "
            "`hwnas resume` the run, which makes its finalists again"
        ) from error


def _tried(row: Mapping[str, Any]) -> TriedFinalist:
    limits = tuple(LimitCheck(**check) for check in row["limits"])
    return TriedFinalist(**{**row, "limits": limits})


def is_own_fault(error: HwnasError) -> bool:
    """Whether an error is about one network, so that another one may do better."""
    return not isinstance(error, _NOBODYS_FAULT)


def choose(result: SearchResult, count: int) -> list[Scored]:
    """A few candidates that show the whole front, from the next fronts where it is too small."""
    feasible = result.feasible
    table = weighed(result.objectives, [trial.values for trial in feasible])
    return [feasible[i] for i in pick_spread(table, count)]


def fill_shortlist(
    result: SearchResult,
    count: int,
    make: Callable[[Sequence[Scored]], Made],
    note: Callable[[str], None] = lambda text: None,
) -> Shortlist:
    """Make finalists until so many keep the limits, or for as many rounds as are allowed.

    Those that keep them come first. What is missing then is filled with those that come closest,
    which everything that shows them marks.

    Args:
        result: All trials.
        count: How many finalists there shall be.
        make: Makes candidates into finalists.
        note: Tells the user what is replaced, and why.

    Raises:
        HwnasError: None of the candidates could be made; that of the last one.
    """
    rounds: dict[str, int] = {}
    made: dict[str, tuple[LimitCheck, ...]] = {}
    failed: dict[str, HwnasError] = {}
    wanted = choose(result, count)
    for number in range(1 + REPLACEMENT_ROUNDS):
        for name, outcome in make(wanted).items():
            rounds[name] = number
            if isinstance(outcome, HwnasError):
                failed[name] = outcome
                note(f"finalist {name} failed: {outcome}")
                continue
            made[name] = outcome
            for line in told(outcome):
                note(f"finalist {name}: {line}")
        kept = [name for name, checks in made.items() if overall(checks) == "kept"]
        missing = count - len(kept)
        wanted = _next(result, missing, made, failed) if missing > 0 else []
        if not wanted or number == REPLACEMENT_ROUNDS:
            break
        names = ", ".join(trial.candidate.id for trial in wanted)
        note(
            f"{missing} of {count} finalists are missing; the next candidates take their place: "
            f"{names} (round {number + 1} of {REPLACEMENT_ROUNDS})"
        )
    if not made:
        raise list(failed.values())[-1]
    packed = sorted(made, key=lambda name: shortfall(made[name]))[:count]
    if marked := [name for name in packed if overall(made[name]) != "kept"]:
        note(
            f"of {len(rounds)} candidates that were tried, {len(packed) - len(marked)} keep the "
            f"limits; the closest of the others are kept, too, and marked: {', '.join(marked)}"
        )
    tried = [
        TriedFinalist(name, number, "failed", False, reason=str(failed[name]))
        if name in failed
        else TriedFinalist(name, number, overall(made[name]), name in packed, made[name])
        for name, number in rounds.items()
    ]
    return Shortlist(tuple(tried))


def _next(
    result: SearchResult,
    count: int,
    made: Mapping[str, Sequence[LimitCheck]],
    failed: Mapping[str, HwnasError],
) -> list[Scored]:
    """Candidates that were not tried, those first that are likely to keep the limits.

    What the search knew of a candidate is corrected by how far it was from what was delivered: of
    latencies by the median ratio over the finalists so far, of scores by the median difference.
    """
    trials = {trial.candidate.id: trial for trial in result.feasible}
    corrections = {
        objective.label: _correction(objective, trials, made)
        for objective in result.objectives
        if objective.limit is not None
    }

    def excess(trial: Scored) -> float:
        missed = 0.0
        for objective in result.objectives:
            if objective.limit is not None:
                value = corrections[objective.label](trial.values[objective.label])
                missed += max(0.0, objective.violation(value)) / (abs(objective.limit) or 1.0)
        return missed

    order = choose(result, len(trials))
    left = [t for t in order if t.candidate.id not in made and t.candidate.id not in failed]
    return sorted(left, key=excess)[:count]  # a stable sort: else in the order that shows the front


def _correction(
    objective: Objective,
    trials: Mapping[str, Scored],
    made: Mapping[str, Sequence[LimitCheck]],
) -> Callable[[float], float]:
    known = [
        (trials[name].values[objective.label], check.value)
        for name, checks in made.items()
        for check in checks
        if check.label == objective.label and check.decides
    ]
    if not known:
        return lambda value: value
    if objective.metric == LATENCY:
        ratio = median(found / expected for expected, found in known)
        return lambda value: value * ratio
    shift = median(found - expected for expected, found in known)
    return lambda value: value + shift
