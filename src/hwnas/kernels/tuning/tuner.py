"""Tuner that searches for the fastest configuration: propose, check, measure, judge, and repeat.

The loop is CudaForge's (Zhang et al., 2025), with any proposer instead of its language models. A
proposal has to be a solution of the operator's problem. A cost model picks the most promising ones.
Those are compiled, and dropped if they spill registers or are hopeless by the compiler's report.
The others must compute what the reference does, and only then they are timed, the slow ones for a
few runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Protocol, TypeVar

import numpy as np

from hwnas.errors import DeviceError
from hwnas.kernels.compile_ahead import Compiled
from hwnas.kernels.operator import Config
from hwnas.kernels.suite.timer import Times
from hwnas.kernels.tuning.checked_proposer import CheckedProposer
from hwnas.kernels.tuning.cost_model import CostModel
from hwnas.kernels.tuning.proposers import Proposer, RuleProposer
from hwnas.kernels.tuning.trial import Footprint, TuningTask, TuningTrial

__all__ = ["Bench", "TuningResult", "tune"]

T = TypeVar("T")

_BATCH = 4  # configurations compiled at a time
_TRUSTED = 8  # trials from which on the cost model is used
_RUNS = 30
# Runs, and the multiple of the best time beyond which a configuration is dropped after them.
_PATIENCE = ((3, 10.0), (10, 1.5), (_RUNS, math.inf))
_FINALISTS = 3
_RESERVE = 0.1  # share of the time limit for the finalists
_BYTES = 4.0  # most traffic, as a multiple of the best one's
_HOPELESS = 3.0  # most predicted time, as a multiple of the best; predictions may be far off


class Bench(Protocol):
    """Bench on which configurations are tried: a GPU, or something that stands for one."""

    def footprint(self, config: Config) -> Footprint:
        """Return what is known of a configuration without compilation."""

    def compile(self, configs: Sequence[Config]) -> Sequence[Compiled]:
        """Return the resource usage of each configuration, or why it cannot be compiled."""

    def error(self, config: Config) -> float:
        """Return the largest error as a multiple of the tolerance.

        Raises:
            DeviceError: The GPU is unusable from now on.
        """

    def times_us(self, config: Config, runs: int) -> Sequence[float]:
        """Return the times of ``runs`` runs, in microseconds.

        Raises:
            DeviceError: The GPU is unusable from now on.
        """


@dataclass(frozen=True)
class TuningResult:
    """Result of tuning.

    Attributes:
        trials: Trials in the order in which they were made.
        refused: Proposals that are no solutions of the problem.
        notes: Messages for the user, one line each.
    """

    trials: tuple[TuningTrial, ...]
    refused: tuple[TuningTrial, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> TuningTrial | None:
        """Fastest correct trial; None if nothing was timed to the end."""
        return _best(self.trials)


def tune(
    task: TuningTask,
    bench: Bench,
    proposer: Callable[[TuningTask, int], Proposer] = RuleProposer,
    *,
    seconds: float,
    clock: Callable[[], float],
    seed: int = 0,
    model: CostModel | None = None,
    on_trial: Callable[[TuningTrial], None] = lambda trial: None,
) -> TuningResult:
    """Search for the fastest configuration within a time limit.

    Args:
        task: Tuning task.
        bench: Bench on which configurations are tried.
        proposer: Function of a task and a seed that makes a proposer. If it fails, rules replace it
            and a note says so; one that never returns cannot be stopped.
        seconds: Time limit of the whole search. No step is begun that took longer before than the
            time left.
        clock: Function that returns the time in seconds.
        seed: Seed of all random choices. On a real clock two runs may still differ.
        model: Cost model that was trained at other sizes; it is trained further here.
        on_trial: Function that is called after each trial, so that a killed run leaves what it
            measured.

    Returns:
        All trials, refused proposals and notes.
    """
    budget = _Budget(clock, seconds)
    tuning = _Tuning(task, bench, budget, CostModel() if model is None else model, on_trial)
    proposing, random = CheckedProposer(task, seed, proposer), Random(seed)
    notes = []
    try:
        while tuning.goes_on(proposing, random):
            pass
        tuning.compare_finalists()
    except DeviceError as error:
        notes.append(f"stopped: {error}")
    notes = [*proposing.notes, *notes]
    return TuningResult(tuple(tuning.trials), tuple(proposing.refused), tuple(notes))


def _best(trials: Iterable[TuningTrial]) -> TuningTrial | None:
    timed = (trial for trial in trials if trial.verdict == "timed")
    return min(timed, key=lambda trial: trial.p50_us, default=None)


class _Budget:
    """Time that is left, and the longest duration of each kind of step."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock, self._seconds, self._end = clock, seconds, clock() + seconds
        self._longest: dict[str, float] = {}

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._end - self._clock()

    def allows(self, step: str, reserve: float = 0.0) -> bool:
        """Return whether there is time for a step, with a share of the time limit left after it."""
        return self.left > self._longest.get(step, 0.0) + reserve * self._seconds

    def spend(self, step: str, work: Callable[[], T]) -> T:
        """Do a step, and record how long it took."""
        began = self._clock()
        done = work()
        self._longest[step] = max(self._longest.get(step, 0.0), self._clock() - began)
        return done


@dataclass
class _Tuning:
    """State of the tuning loop."""

    task: TuningTask
    bench: Bench
    budget: _Budget
    model: CostModel
    on_trial: Callable[[TuningTrial], None]

    def __post_init__(self) -> None:
        self.trials: list[TuningTrial] = []

    def goes_on(self, proposing: CheckedProposer, random: Random) -> bool:
        """Do one round; return False if there is no time for one, or nothing left to try."""
        if not self.budget.allows("compile", _RESERVE) or not (proposed := proposing.ask()):
            return False
        batch = self._promising(proposed, random)
        compiled = self.budget.spend(
            "compile", lambda: self.bench.compile([trial.config for trial in batch])
        )
        began = len(self.trials)
        for trial, parts in zip(batch, compiled, strict=True):
            if not self.budget.allows("judge", _RESERVE):
                return False
            self._keep(self.budget.spend("judge", partial(self._judged, trial, parts)))
        made = self.trials[began:]
        self.model.learn(self.task, made)
        proposing.tell(made)
        return True

    def compare_finalists(self) -> None:
        """Time the best few again, in turn: the luckiest of many looks faster than it is."""
        places = [p for p, trial in enumerate(self.trials) if trial.verdict == "timed"]
        places = sorted(places, key=lambda p: self.trials[p].p50_us)[:_FINALISTS]
        times: dict[int, list[float]] = {place: [] for place in places}
        for place in places * 5:
            if not self.budget.allows("again"):
                return
            more = partial(self.bench.times_us, self.trials[place].config, _RUNS // 5)
            times[place] += self.budget.spend("again", more)
        for place, found in times.items():
            self.trials[place] = replace(self.trials[place], times=Times.of(found))

    def _keep(self, trial: TuningTrial) -> None:
        self.trials.append(trial)
        self.on_trial(trial)

    def _promising(self, configs: Sequence[Config], random: Random) -> list[TuningTrial]:
        """Return trials that the model predicts to be fast, and one of the others at random."""
        untried = [TuningTrial(c, "untried", footprint=self.bench.footprint(c)) for c in configs]
        if not self.trials or len(self.model) < _TRUSTED:
            return untried[:_BATCH]
        order = np.argsort(self.model.predict_us(self.task, untried), kind="stable")
        ranked = [untried[place] for place in order]
        rest = ranked[_BATCH - 1 :]
        return ranked[: _BATCH - 1] + random.sample(rest, min(1, len(rest)))

    def _judged(self, trial: TuningTrial, compiled: Compiled) -> TuningTrial:
        if isinstance(compiled, str):
            return replace(trial, verdict="failed", reason=compiled)
        trial = replace(trial, resources=compiled)
        if reason := self._hopeless(trial):
            return replace(trial, verdict="wasteful", reason=reason)
        try:
            error = self.bench.error(trial.config)
            if not error <= 1:
                reason = f"its largest error is {error:.3g} times the tolerance"
                return replace(trial, verdict="wrong", reason=reason)
            return self._timed(trial)
        except DeviceError as error:
            self._keep(replace(trial, verdict="failed", reason=str(error)))
            raise
        except Exception as error:  # drivers refuse to launch kernels with many kinds of errors
            reason = f"{type(error).__name__}: {error}"
            return replace(trial, verdict="failed", reason=reason)

    def _hopeless(self, trial: TuningTrial) -> str:
        """Return why a trial is not worth timing, by the compiler's report; empty if it is."""
        gpu, best = self.task.gpu, _best(self.trials)
        if not trial.occupancy(gpu):
            return "one program needs more resources than a multiprocessor has"
        if best is None:
            return ""
        if trial.spilled_bytes > best.spilled_bytes:
            return f"it spills {trial.spilled_bytes} bytes of registers per thread"
        assert trial.footprint
        assert best.footprint
        more = trial.footprint.busiest_bytes / max(best.footprint.busiest_bytes, 1)
        if more > _BYTES and trial.occupancy(gpu) <= best.occupancy(gpu):
            return f"it reads {more:.1f} times as much as the best, with no more warps"
        if len(self.model) < 2 * _TRUSTED:
            return ""
        slower = self.model.predict_us(self.task, [trial])[0] / best.p50_us
        return (
            f"it is predicted to take {slower:.1f} times as long as the best"
            if slower > _HOPELESS
            else ""
        )

    def _timed(self, trial: TuningTrial) -> TuningTrial:
        best = _best(self.trials)
        fastest_us = best.p50_us if best else math.inf
        times: list[float] = []
        left = self.budget.left
        for runs, factor in _PATIENCE:
            a_run = (left - self.budget.left) / max(len(times), 1)
            if times and a_run * (runs - len(times)) > self.budget.left:
                break
            times += self.bench.times_us(trial.config, runs - len(times))
            trial = replace(trial, verdict="timed", times=Times.of(times))
            slower = trial.p50_us / fastest_us
            if slower > factor:
                reason = f"{slower:.1f} times as long as the best after {len(times)} runs"
                return replace(trial, verdict="slow", reason=reason)
        return trial
