"""Choice of the finalists among the candidates, with replacement of those that disappoint.

The first choice covers the whole front; with a limit on scores after the fine-tuning, the part of
the front from which it can be reached. Where one of these candidates fails, or does not keep a
limit when measured, the next candidate replaces it, for a few rounds at most. The first of these
rounds may have room for more candidates than are missing; these become further finalists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

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
from hwnas.search.objectives.front import pick_spread
from hwnas.search.objectives.objective import Objective, weighed
from hwnas.stages.finalists.limits import LimitCheck, LimitState, limit_messages, overall, shortfall

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
_NOBODYS_FAULT = (ConfigError, DataError, DeviceError, RunError, StorageError, WorkerError)
"""Errors of the recipe or the machine, which any other candidate would also cause."""

_LOSS_LEFT = 0.4  # share of a candidate's loss to the best one that fine-tuning leaves
_LEAST_FOR_LINE = 3

Made = Mapping[str, tuple[LimitCheck, ...] | HwnasError]
"""Outcome of making candidates into finalists, by id: limit checks, or the error."""


@dataclass(frozen=True)
class TriedFinalist:
    """Candidate that was made into a finalist, or for which this failed.

    Attributes:
        id: Id of the candidate.
        round: Round in which it was tried: 0 for the first choice, then that of its replacements.
        state: State of its limits; ``failed`` if it could not be made.
        packed: Whether it is a finalist in the end.
        limits: Checks of its delivered values against each limit.
        reason: Reason why it failed; empty if it did not.
    """

    id: str
    round: int
    state: LimitState | Literal["failed"]
    packed: bool
    limits: tuple[LimitCheck, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Shortlist:
    """All candidates that were tried as finalists, in that order."""

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
    """Return the candidates that were tried; none if an older version did not record them.

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
    """Return whether an error concerns one network only, so that another may do better."""
    return not isinstance(error, _NOBODYS_FAULT)


def choose(result: SearchResult, count: int) -> list[Scored]:
    """Return candidates that cover the front, from further fronts if it has too few.

    Candidates that are expected to violate a limit after the fine-tuning come last, the closest
    first.
    """
    misses = _expected_misses(result)
    ranked = sorted(zip(misses, result.feasible, strict=True), key=lambda pair: pair[0])
    promising = [trial for miss, trial in ranked if miss <= 0]
    table = weighed(result.objectives, [trial.values for trial in promising])
    picked = [promising[i] for i in pick_spread(table, count)] if promising else []
    others = [trial for miss, trial in ranked if miss > 0]
    return [*picked, *others[: count - len(picked)]]


def _expected_misses(result: SearchResult) -> list[float]:
    """Return by how much each feasible candidate is expected to violate limits once fine-tuned.

    These are limits on scores. The best candidate is expected to reach the limit at least, others
    to keep a share of what they lose to it in the search. Two standard errors are granted.
    """
    misses = [0.0] * len(result.feasible)
    for objective in result.objectives:
        if objective.limit is None or objective.limits_candidates:
            continue
        losses = [objective.loss(trial.values[objective.label]) for trial in result.feasible]
        limit, best = objective.loss(objective.limit), min(losses, default=0.0)
        for place, trial in enumerate(result.feasible):
            expected = min(best, limit) + _LOSS_LEFT * (losses[place] - best)
            noise = 2 * trial.standard_errors.get(objective.metric, 0.0)
            misses[place] = max(misses[place], expected - noise - limit)
    return misses


def fill_shortlist(
    result: SearchResult,
    count: int,
    make: Callable[[Sequence[Scored]], Made],
    note: Callable[[str], None] = lambda text: None,
    replacements: int = 2,
    spare: int = 0,
) -> Shortlist:
    """Make finalists until ``count`` of them meet the limits, or until the rounds are used up.

    Finalists that meet the limits come first, perhaps more than ``count``. The places that they
    leave up to ``count`` are filled with those that come closest; they are marked wherever they are
    shown.

    Args:
        result: All trials.
        count: Wanted number of finalists.
        make: Function that makes candidates into finalists.
        note: Function that tells the user which candidates are replaced, and why.
        replacements: Number of rounds in which candidates are replaced.
        spare: Number of candidates that the first of these rounds tries at least.

    Raises:
        HwnasError: None of the candidates could be made; the error of the last one.
    """
    rounds: dict[str, int] = {}
    made: dict[str, tuple[LimitCheck, ...]] = {}
    failed: dict[str, HwnasError] = {}
    wanted = choose(result, count)
    for number in range(1 + replacements):
        for name, outcome in make(wanted).items():
            rounds[name] = number
            if isinstance(outcome, HwnasError):
                failed[name] = outcome
                note(f"finalist {name} failed: {outcome}")
                continue
            made[name] = outcome
            for line in limit_messages(outcome):
                note(f"finalist {name}: {line}")
        kept = [name for name, checks in made.items() if overall(checks) == "kept"]
        missing = max(0, count - len(kept))
        wanted = _next(result, max(missing, 0 if number else spare), made, failed)
        if not wanted or number == replacements:
            break
        names = ", ".join(trial.candidate.id for trial in wanted)
        if missing:
            note(
                f"{missing} of {count} finalists are missing; the next candidates take their "
                f"place: {names} (round {number + 1} of {replacements})"
            )
        else:
            note(f"there is time for further finalists: {names}")
    if not made:
        raise list(failed.values())[-1]
    places = max(count, len(kept))
    packed = sorted(made, key=lambda name: shortfall(made[name]))[:places]
    if marked := [name for name in packed if overall(made[name]) != "kept"]:
        note(
            f"{len(packed) - len(marked)} of {len(rounds)} candidates that were tried meet the "
            f"limits; the closest of the others are also packed, and marked: {', '.join(marked)}"
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
    """Return untried candidates, those first that are likely to meet the limits.

    The values of the search are corrected by the delivered values of the finalists so far: costs by
    the median ratio, scores by a line through at least three, or by the median difference.
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
    return sorted(left, key=excess)[:count]  # stable: ties stay in the order of `choose`


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
    if objective.all_targets:
        ratio = median(found / expected for expected, found in known)
        return lambda value: value * ratio
    scores, delivered = (np.array(each) for each in zip(*known, strict=True))
    if len(known) >= _LEAST_FOR_LINE and np.ptp(scores) > 0:
        slope = float(np.clip(np.polyfit(scores, delivered, 1)[0], 0, 1))
        return lambda value: float(delivered.mean() + slope * (value - scores.mean()))
    shift = median(found - expected for expected, found in known)
    return lambda value: value + shift
