"""Looks for the configuration that is fastest: propose, check, measure, judge, and again.

The loop is CudaForge's (Zhang et al., 2025), with any proposer in the place of its language models.
What is proposed has to be a solution of the operator's problem; a learned model picks the most
promising; those are compiled, and dropped where they spill registers or are hopeless by what the
compiler says; they must compute what the reference does; and only then they are timed, the slow
ones for a few runs.
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
from hwnas.kernels.ahead import Compiled
from hwnas.kernels.cost_model import CostModel
from hwnas.kernels.operator import Config
from hwnas.kernels.proposers import Proposer, Rules
from hwnas.kernels.proposing import Proposing
from hwnas.kernels.timer import Times
from hwnas.kernels.trial import Footprint, Task, Trial

__all__ = ["Bench", "Outcome", "tune"]

T = TypeVar("T")

_BATCH = 4  # compiled at a time
_TRUSTED = 8  # trials from which on the model is believed
_RUNS = 30
# After so many runs drop what takes so many times the best.
_PATIENCE = ((3, 10.0), (10, 1.5), (_RUNS, math.inf))
_FINALISTS = 3
_RESERVE = 0.1  # share of the time for them
_BYTES = 4.0  # times the best's traffic
_HOPELESS = 3.0  # times the best's time, predicted, which may be wrong by much


class Bench(Protocol):
    """Where configurations are tried: a card, or something that stands for one."""

    def footprint(self, config: Config) -> Footprint:
        """What is known without compiling."""

    def compile(self, configs: Sequence[Config]) -> Sequence[Compiled]:
        """What kernels take, or why they cannot be compiled."""

    def error(self, config: Config) -> float:
        """The largest error as a multiple of what is allowed.

        Raises:
            DeviceError: The card can do nothing any more.
        """

    def times_us(self, config: Config, runs: int) -> Sequence[float]:
        """So many times in microseconds.

        Raises:
            DeviceError: The card can do nothing any more.
        """


@dataclass(frozen=True)
class Outcome:
    """What tuning found.

    Attributes:
        trials: In the order in which they were made.
        refused: What was proposed and is no solution of the problem.
        notes: What the user should know, a line each.
    """

    trials: tuple[Trial, ...]
    refused: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Trial | None:
        """The fastest that is right; None if nothing was timed to the end."""
        return _best(self.trials)


def tune(
    task: Task,
    bench: Bench,
    proposer: Callable[[Task, int], Proposer] = Rules,
    *,
    seconds: float,
    clock: Callable[[], float],
    seed: int = 0,
    model: CostModel | None = None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> Outcome:
    """Look for the fastest configuration as long as there is time.

    Args:
        task: What is tuned.
        bench: Where it is tried.
        proposer: Makes a proposer of a task and a seed. Where it fails rules go on, and a note
            says so; one that never comes back cannot be stopped.
        seconds: For all of it. Nothing is begun that took longer before than there is time left.
        clock: Gives the time in seconds.
        seed: Of all that is random. On a real clock two runs may still differ.
        model: What was learned at other sizes; learns more here.
        on_trial: Called after each trial, so that a run that is killed leaves what it measured.

    Returns:
        All trials.
    """
    budget = _Budget(clock, seconds)
    tuning = _Tuning(task, bench, budget, CostModel() if model is None else model, on_trial)
    proposing, random = Proposing(task, seed, proposer), Random(seed)
    notes = []
    try:
        while tuning.goes_on(proposing, random):
            pass
        tuning.compare_finalists()
    except DeviceError as error:
        notes.append(f"stopped: {error}")
    notes = [*proposing.notes, *notes]
    return Outcome(tuple(tuning.trials), tuple(proposing.refused), tuple(notes))


def _best(trials: Iterable[Trial]) -> Trial | None:
    timed = (trial for trial in trials if trial.verdict == "timed")
    return min(timed, key=lambda trial: trial.p50_us, default=None)


class _Budget:
    """Time that is left, and how long each kind of step took at most."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock, self._seconds, self._end = clock, seconds, clock() + seconds
        self._longest: dict[str, float] = {}

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._end - self._clock()

    def allows(self, step: str, reserve: float = 0.0) -> bool:
        """Whether there is time for a step, with a share of all the time left after it."""
        return self.left > self._longest.get(step, 0.0) + reserve * self._seconds

    def spend(self, step: str, work: Callable[[], T]) -> T:
        """Do a step, and remember how long it took."""
        began = self._clock()
        done = work()
        self._longest[step] = max(self._longest.get(step, 0.0), self._clock() - began)
        return done


@dataclass
class _Tuning:
    """The state of the loop."""

    task: Task
    bench: Bench
    budget: _Budget
    model: CostModel
    on_trial: Callable[[Trial], None]

    def __post_init__(self) -> None:
        self.trials: list[Trial] = []

    def goes_on(self, proposing: Proposing, random: Random) -> bool:
        """One round; False where there is no time for another, or nothing left to try."""
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

    def _keep(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.on_trial(trial)

    def _promising(self, configs: Sequence[Config], random: Random) -> list[Trial]:
        """Those that the model expects to be fast, and one that it had no say in."""
        untried = [Trial(c, "untried", footprint=self.bench.footprint(c)) for c in configs]
        if not self.trials or len(self.model) < _TRUSTED:
            return untried[:_BATCH]
        order = np.argsort(self.model.predict_us(self.task, untried), kind="stable")
        ranked = [untried[place] for place in order]
        rest = ranked[_BATCH - 1 :]
        return ranked[: _BATCH - 1] + random.sample(rest, min(1, len(rest)))

    def _judged(self, trial: Trial, compiled: Compiled) -> Trial:
        if isinstance(compiled, str):
            return replace(trial, verdict="failed", reason=compiled)
        trial = replace(trial, resources=compiled)
        if reason := self._hopeless(trial):
            return replace(trial, verdict="wasteful", reason=reason)
        try:
            error = self.bench.error(trial.config)
            if not error <= 1:
                reason = f"its largest error is {error:.3g} times what is allowed"
                return replace(trial, verdict="wrong", reason=reason)
            return self._timed(trial)
        except DeviceError as error:
            self._keep(replace(trial, verdict="failed", reason=str(error)))
            raise
        except Exception as error:  # drivers refuse to start kernels in many ways
            reason = f"{type(error).__name__}: {error}"
            return replace(trial, verdict="failed", reason=reason)

    def _hopeless(self, trial: Trial) -> str:
        """Why it is not worth timing, by what the compiler says of it; empty if it is."""
        card, best = self.task.card, _best(self.trials)
        if not trial.occupancy(card):
            return "one program takes more than a multiprocessor has"
        if best is None:
            return ""
        if trial.spilled_bytes > best.spilled_bytes:
            return f"it spills {trial.spilled_bytes} bytes of registers a thread"
        assert trial.footprint
        assert best.footprint
        more = trial.footprint.busiest_bytes / max(best.footprint.busiest_bytes, 1)
        if more > _BYTES and trial.occupancy(card) <= best.occupancy(card):
            return f"it reads {more:.1f} times what the best does, with no more warps"
        if len(self.model) < 2 * _TRUSTED:
            return ""
        slower = self.model.predict_us(self.task, [trial])[0] / best.p50_us
        return f"it is predicted to take {slower:.1f} times the best" if slower > _HOPELESS else ""

    def _timed(self, trial: Trial) -> Trial:
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
                reason = f"{slower:.1f} times the best after {len(times)} runs"
                return replace(trial, verdict="slow", reason=reason)
        return trial
