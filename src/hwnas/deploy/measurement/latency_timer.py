"""Interleaved timing of networks in rounds, and detection of disturbed rounds.

Each round reads both CPU time and wall time. If other work takes the processor away in between, the
wall clock runs ahead of the CPU clock, and the round is repeated later. A round is also repeated if
the rounds of the same network before and after it were slow: other users of the machine, which
hwnas cannot see, share its caches and its frequency, so that CPU time grows, too. The time of the
round itself is not a criterion, since selecting rounds by it would bias the medians.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from hwnas.deploy.measurement.measurement import Quantiles
from hwnas.errors import ConfigError

__all__ = ["Clock", "LatencyTimer", "TimingRound", "TimingSettings", "interleave"]

_QUICKEST = 20  # fastest rounds from which the quick time of a network is estimated
_KEPT = 4  # rounds kept at least, as a multiple of the wanted rounds

Clock = Callable[[], float]
"""Function that returns a time in seconds."""


@dataclass(frozen=True)
class TimingSettings:
    """Settings that determine how much is timed.

    Attributes:
        warmup: Number of runs before the timed ones.
        rounds: Number of clean (undisturbed) rounds per network.
        round_ms: Duration of a round in milliseconds; a round has as many runs as take this long,
            so that the resolution of the clock does not matter.
        max_seconds: Largest duration of all rounds of a network together, in seconds; there are at
            least 5 rounds.
        max_wall_cpu_ratio: Largest ratio of wall time to CPU time of a clean round.
        max_slowdown: Largest ratio of the rounds before and after a clean round to the network's
            quick time (`LatencyTimer.quick_ms`).
        retries: Largest number of additional rounds for each wanted one, if some are not clean.
        patience_s: Largest time, in seconds, for all networks together, during which timing goes on
            until enough rounds are clean. If it is above 0, quick times of earlier sessions count,
            too (`hwnas.deploy.measurement.latency_history`).
    """

    warmup: int = 10
    rounds: int = 50
    round_ms: float = 5.0
    max_seconds: float = 5.0
    max_wall_cpu_ratio: float = 1.3
    max_slowdown: float = 1.05
    retries: int = 5
    patience_s: float = 0.0

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.warmup < 1 or self.retries < 0:
            raise ConfigError(
                f"warmup {self.warmup}, rounds {self.rounds}, retries {self.retries}: expected at "
                "least 1, 1 and 0"
            )
        if min(self.max_wall_cpu_ratio, self.max_slowdown) <= 1:
            raise ConfigError(
                f"max_wall_cpu_ratio {self.max_wall_cpu_ratio}, max_slowdown {self.max_slowdown}: "
                "expected more than 1"
            )
        if self.round_ms <= 0 or self.max_seconds <= 0:
            raise ConfigError(
                f"round_ms {self.round_ms}, max_seconds {self.max_seconds}: expected more than 0"
            )
        if not 0 <= self.patience_s < math.inf:
            raise ConfigError(f"patience_s {self.patience_s}: expected 0 or more")


@dataclass(frozen=True)
class TimingRound:
    """Times of one run, averaged over a timing round, in milliseconds.

    Attributes:
        cpu_ms: Time on the CPU clock.
        wall_ms: Time on the wall clock.
        anchor_ms: Time of the reference model right after the round; 0 without a reference model.
        beside_ms: Time of the slower of the rounds before and after, on the headline clock, as far
            as there are such rounds.
    """

    cpu_ms: float
    wall_ms: float
    anchor_ms: float = 0.0
    beside_ms: float = 0.0

    @property
    def ratio(self) -> float:
        """Ratio of wall time to CPU time; 1 for one undisturbed thread."""
        return self.wall_ms / max(self.cpu_ms, 1e-9)


class LatencyTimer:
    """Timer of one network, round by round. Creating one warms the network up.

    Args:
        run: Function that runs the network once.
        settings: Timing settings.
        cpu: Clock of the CPU time that the network uses.
        wall: Wall clock.
        one_thread: True if one thread of the processor does all the work.
        reference: Timer of the reference model on the same target, which times a round after each
            round of the network.
        usual_ms: Quick time of the network in earlier sessions, if known; rounds then have to be as
            quick.
    """

    def __init__(
        self,
        run: Callable[[], object],
        settings: TimingSettings,
        cpu: Clock,
        wall: Clock = time.perf_counter,
        one_thread: bool = True,
        reference: LatencyTimer | None = None,
        usual_ms: float | None = None,
    ) -> None:
        self._run, self._cpu, self._wall, self._one_thread = run, cpu, wall, one_thread
        self._settings, self._reference = settings, reference
        self._usual_ms = math.inf if usual_ms is None else usual_ms
        # Without the latest round; the most disturbed rounds are dropped if there are many.
        self._rounds: list[TimingRound] = []
        self._latest: TimingRound | None = None
        self._timed = 0
        self._quickest_ms: list[float] = []  # sorted
        self._least_ratio = math.inf
        for _ in range(settings.warmup):
            run()
        one_ms = max(min(self._time(1).wall_ms for _ in range(3)), 1e-6)
        self._repeats = max(1, math.ceil(settings.round_ms / one_ms))
        affordable = int(1e3 * settings.max_seconds / (self._repeats * one_ms))
        self.wanted = min(settings.rounds, max(5, affordable))

    def _time(self, repeats: int) -> TimingRound:
        wall, cpu = self._wall(), self._cpu()
        for _ in range(repeats):
            self._run()
        cpu, wall = self._cpu() - cpu, self._wall() - wall
        return TimingRound(1e3 * cpu / repeats, 1e3 * wall / repeats)

    def _least_disturbed(self) -> list[TimingRound]:
        """Return as many rounds as are wanted, those that were disturbed least."""
        return sorted(self._all_rounds, key=self._disturbance)[: self.wanted]

    @property
    def _all_rounds(self) -> list[TimingRound]:
        return self._rounds if self._latest is None else [*self._rounds, self._latest]

    def quantiles(self, clock: Literal["cpu", "wall"]) -> Quantiles:
        """Return the quantiles over the least disturbed rounds, as many as are wanted."""
        best = self._least_disturbed()
        return Quantiles.of([r.cpu_ms if clock == "cpu" else r.wall_ms for r in best])

    @property
    def anchor_ms(self) -> float:
        """Median time of the reference model beside the least disturbed rounds; 0 without one."""
        return median(timed.anchor_ms for timed in self._least_disturbed())

    def time_round(self) -> None:
        """Time one more round."""
        timed, before = self._time(self._repeats), self._latest
        if self._reference is not None:
            self._reference.time_round()
            timed = replace(timed, anchor_ms=self._reference.latest_ms)
        ms = self._headline_ms(timed)
        if before is not None:
            timed = replace(timed, beside_ms=self.latest_ms)
            self._keep(replace(before, beside_ms=max(before.beside_ms, ms)))
        self._latest = timed
        self._timed += 1
        insort(self._quickest_ms, ms)
        del self._quickest_ms[_QUICKEST:]
        self._least_ratio = min(self._least_ratio, timed.ratio)

    def _keep(self, timed: TimingRound) -> None:
        self._rounds.append(timed)
        if len(self._rounds) > 2 * _KEPT * self.wanted:
            self._rounds = sorted(self._rounds, key=self._disturbance)[: _KEPT * self.wanted]

    def _headline_ms(self, timed: TimingRound) -> float:
        return timed.cpu_ms if self._one_thread else timed.wall_ms

    @property
    def latest_ms(self) -> float:
        """Time of the last round, on the headline clock; 0 before the first round."""
        return 0.0 if self._latest is None else self._headline_ms(self._latest)

    @property
    def quick_ms(self) -> float:
        """Quick time of the network: first percentile of its rounds, at most the 20th fastest."""
        return self._quickest_ms[min(self._timed // 100, _QUICKEST - 1)]

    @property
    def clean(self) -> int:
        """Number of undisturbed rounds, at most as many as are wanted."""
        return min(self.wanted, sum(self._disturbance(timed) <= 1 for timed in self._all_rounds))

    def _disturbance(self, timed: TimingRound) -> float:
        """Return the disturbance of a round, which is at most 1 if nothing disturbed it."""
        # Several threads add up on the CPU clock, and a thread that waits for a GPU idles or spins.
        # In these cases the smallest ratio of all rounds counts as undisturbed.
        undisturbed = 1.0 if self._one_thread else self._least_ratio
        slowdown = timed.beside_ms / min(self.quick_ms, self._usual_ms)
        return max(
            timed.ratio / (self._settings.max_wall_cpu_ratio * undisturbed),
            slowdown / self._settings.max_slowdown,
        )

    def may_retry(self, retries: int) -> bool:
        """Return whether fewer than 1 + ``retries`` times the wanted rounds were timed."""
        return self._timed < (1 + retries) * self.wanted


def interleave(
    rivals: Sequence[LatencyTimer],
    others: Sequence[LatencyTimer],
    retries: int,
    progress: Callable[[float], None] | None = None,
    patience_s: float = 0.0,
    clock: Clock = time.perf_counter,
) -> None:
    """Time networks in turn until each has enough clean rounds or runs out of retries.

    Args:
        rivals: Timers that all others are compared with; they time a round whenever others do.
        others: Timers of the networks to be measured.
        retries: Largest number of additional rounds for each wanted one.
        progress: Function that is called with the completed share, from 0 to 1.
        patience_s: Time in seconds during which timing goes on, however many rounds that takes,
            until all networks have enough clean rounds.
        clock: Clock for ``patience_s``.
    """
    timers = [*rivals, *others]
    wanted = sum(timer.wanted for timer in timers)
    end = clock() + patience_s
    done = 0
    while waiting := [
        each
        for each in timers
        if each.clean < each.wanted and (each.may_retry(retries) or clock() < end)
    ]:
        for timer in dict.fromkeys([*rivals, *waiting]):
            timer.time_round()
        if progress is not None:
            # After a quicker round, earlier rounds may no longer be clean.
            done = max(done, sum(timer.clean for timer in timers))
            progress(done / wanted)
    if progress is not None:
        progress(1.0)
