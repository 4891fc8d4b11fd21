"""Failures of candidates, and the rule that ends a search in which nearly all candidates fail."""

from __future__ import annotations

import itertools
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from typing import Any, Literal

from hwnas.errors import NonFiniteOutput, WorkerError
from hwnas.search.evaluation.scoring import Evaluation

__all__ = ["Failure", "FailureLimit", "Outcome", "checked", "failure_of"]

FailureKind = Literal["raised", "timed out", "worker died", "bad result"]

_REASON_LENGTH = 300
_TRACE_LENGTH = 4000


@dataclass(frozen=True)
class Failure:
    """Reason why a candidate has no evaluation.

    Attributes:
        kind: ``"raised"``: the evaluator raised an error. ``"timed out"``: the evaluation exceeded
            its time limit and was killed. ``"worker died"``: the worker process died in each
            attempt. ``"bad result"``: the evaluator returned no finite number, or not the metrics
            that the objectives need; or the network outputs NaN or infinity.
        reason: Reason in one line, for the user.
        attempts: Number of attempts.
        trace: Traceback of the error, for the log; not kept in the study.
    """

    kind: FailureKind
    reason: str
    attempts: int = 1
    trace: str = field(default="", compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that the study keeps, without the traceback."""
        return {key: value for key, value in asdict(self).items() if key != "trace"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        """Return the failure from the JSON object that `to_json` made."""
        return cls(**data)


Outcome = Evaluation | Failure
"""Result of evaluating a candidate: an evaluation or a failure."""


def failure_of(error: BaseException) -> Failure:
    """Return the failure of a candidate whose evaluation raised an error."""
    said = " ".join(str(error).split())
    if isinstance(error, NonFiniteOutput):
        return _bad(said)
    reason = f"{type(error).__name__}: {said}" if said else type(error).__name__
    trace = "".join(traceback.format_exception(error))
    return Failure("raised", reason[:_REASON_LENGTH], trace=trace[-_TRACE_LENGTH:])


def checked(found: object, metrics: Sequence[str]) -> Outcome:
    """Return an evaluator's result if it is valid, and otherwise a failure.

    Args:
        found: Result of the evaluator.
        metrics: Metrics that the objectives need as finite numbers. Other metrics are allowed.
    """
    if isinstance(found, Failure):
        return found
    if not isinstance(found, Evaluation):
        return _bad(f"the evaluator returned {type(found).__name__}; expected an Evaluation")
    given = ", ".join(found.values) or "nothing"
    for metric in metrics:
        if metric not in found.values:
            return _bad(
                f"the evaluator returned no {metric}, which is an objective; it returned {given}"
            )
        value = found.values[metric]
        if not isinstance(value, Real) or not math.isfinite(value):
            return _bad(f"the evaluator returned {metric} {value!r}; expected a finite number")
    numbers = (*found.values.items(), *found.standard_errors.items())
    for name, value in numbers:
        if not isinstance(value, Real):
            return _bad(f"the evaluator returned {name} {value!r}; expected a number")
    if all(type(value) in (int, float) for _, value in numbers):
        return found
    return replace(  # JSON cannot hold NumPy numbers
        found,
        values={name: float(value) for name, value in found.values.items()},
        standard_errors={name: float(value) for name, value in found.standard_errors.items()},
    )


def _bad(reason: str) -> Failure:
    return Failure("bad result", reason[:_REASON_LENGTH])


@dataclass
class FailureLimit:
    """Rule that ends a search in which nearly all candidates fail.

    Attributes:
        at_first: Consecutive failures that end the search while no candidate was evaluated yet.
        in_a_row: Consecutive failures that end the search later.
        share: Share of failures among all candidates above which the search ends, once at least
            ``in_a_row`` candidates have failed.
        evaluated: Number of candidates evaluated so far.
    """

    at_first: int = 10
    in_a_row: int = 20
    share: float = 0.9
    evaluated: int = 0
    _row: list[Failure] = field(default_factory=list)
    _failed: int = 0

    def succeeded(self) -> None:
        """Count a candidate that was evaluated."""
        self.evaluated += 1
        self._row.clear()

    def failed(self, failure: Failure) -> None:
        """Count a candidate that failed in every attempt.

        Raises:
            WorkerError: Too many candidates have failed.
        """
        self._failed += 1
        self._row.append(failure)
        allowed = self.in_a_row if self.evaluated else self.at_first
        if len(self._row) >= allowed:
            raise WorkerError(f"the last {len(self._row)} candidates have all failed{self._why()}")
        tried = self._failed + self.evaluated
        if self._too_many(self._failed, tried):
            raise WorkerError(f"{self._failed} of {tried} candidates have failed{self._why()}")

    def forgiven(self, outcomes: Sequence[tuple[str, bool]]) -> set[str]:
        """Return the ids of failed candidates to try again when a search is resumed.

        If the search ended because too many candidates failed, these are the failures that ended
        it, since their cause is assumed to be fixed now; otherwise there are none.

        Args:
            outcomes: Id of each candidate so far, in order, and whether it was evaluated.
        """
        row = list(itertools.takewhile(lambda each: not each[1], reversed(outcomes)))
        failed = [name for name, evaluated in outcomes if not evaluated]
        if self._too_many(len(failed), len(outcomes)):
            return set(failed)
        allowed = self.at_first if len(row) == len(outcomes) else self.in_a_row
        return {name for name, _ in row} if len(row) >= allowed else set()

    def _too_many(self, failed: int, tried: int) -> bool:
        return failed >= self.in_a_row and failed > self.share * tried

    def _why(self) -> str:
        reasons = [failure.reason for failure in self._row]
        commonest = max(reasons, key=reasons.count)
        return (
            f", {reasons.count(commonest)} of them with {commonest.rstrip('.')}. Remove the cause "
            "(log.jsonl has the details), then run `hwnas resume`: it keeps all finished "
            "trials and evaluates these candidates again"
        )
