"""Rounds of networks that take turns, and which of them nothing disturbed.

Both CPU time and wall time are read around each round; where other work took the processor away in
between, the wall clock runs ahead of the CPU clock, and the round is repeated later. So it is where
the rounds of the same network before and after it were slow: neighbours on the same machine, whom
nobody here can see, share its caches and its frequency, and then CPU time grows, too. What the
round itself took decides nothing, or medians would be those of a choice.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from hwnas.deploy.measurement import Quantiles
from hwnas.errors import ConfigError

__all__ = ["Clock", "Round", "Stopwatch", "TimingSettings", "interleave"]

_QUICKEST = 20  # rounds by which it is known how quick a network can be
_KEPT = 4  # times the wanted rounds are kept at least

Clock = Callable[[], float]
"""Gives seconds."""


@dataclass(frozen=True)
class TimingSettings:
    """How much to time.

    Attributes:
        warmup: Runs before anything counts.
        rounds: Clean rounds a network.
        round_ms: A round is as many runs as last this long, so that the clock's grain is no matter.
        max_seconds: Rounds a network take no longer than this together, but there are at least 5.
        max_wall_cpu_ratio: A round is clean if its wall time is at most this times its CPU time,
        max_slowdown: and the network's rounds before and after it took at most this times as long
            as its quick ones.
        retries: Up to this many more rounds for each one that is wanted, where some are not clean.
        patience_s: Go on for up to this long, all networks together, until enough rounds are
            clean; quick is then what the network was in earlier such sessions, too
            (`hwnas.deploy.quick_times`).
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
class Round:
    """Times of one run, averaged over a round, in milliseconds.

    Attributes:
        cpu_ms: On the CPU clock.
        wall_ms: On the wall clock.
        anchor_ms: Of the anchor, right after it; 0 without an anchor.
        beside_ms: The slower of the rounds before and after on the clock that counts, as far as
            there are such.
    """

    cpu_ms: float
    wall_ms: float
    anchor_ms: float = 0.0
    beside_ms: float = 0.0

    @property
    def ratio(self) -> float:
        """Wall time over CPU time; 1 for one undisturbed thread."""
        return self.wall_ms / max(self.cpu_ms, 1e-9)


class Stopwatch:
    """Times one network, round by round. Making one warms the network up.

    Args:
        run: Runs the network once.
        settings: How much to time.
        cpu: Clock of the CPU time that the network uses.
        wall: Clock on the wall.
        one_thread: Whether one thread of the processor does all the work.
        anchor: Of the fixed network on the same target, which then has a round after each of these.
        usual_ms: What quick rounds took before, if that is known: then they are to be as quick.
    """

    def __init__(
        self,
        run: Callable[[], object],
        settings: TimingSettings,
        cpu: Clock,
        wall: Clock = time.perf_counter,
        one_thread: bool = True,
        anchor: Stopwatch | None = None,
        usual_ms: float | None = None,
    ) -> None:
        self._run, self._cpu, self._wall, self._one_thread = run, cpu, wall, one_thread
        self._settings, self._anchor = settings, anchor
        self._usual_ms = math.inf if usual_ms is None else usual_ms
        self._rounds: list[Round] = []  # but for the latest, and long ones forget the worst
        self._latest: Round | None = None
        self._timed = 0
        self._quickest_ms: list[float] = []  # sorted
        self._least_ratio = math.inf
        for _ in range(settings.warmup):
            run()
        one_ms = max(min(self._time(1).wall_ms for _ in range(3)), 1e-6)
        self._repeats = max(1, math.ceil(settings.round_ms / one_ms))
        affordable = int(1e3 * settings.max_seconds / (self._repeats * one_ms))
        self.wanted = min(settings.rounds, max(5, affordable))

    def _time(self, repeats: int) -> Round:
        wall, cpu = self._wall(), self._cpu()
        for _ in range(repeats):
            self._run()
        cpu, wall = self._cpu() - cpu, self._wall() - wall
        return Round(1e3 * cpu / repeats, 1e3 * wall / repeats)

    def _least_disturbed(self) -> list[Round]:
        """As many rounds as are wanted."""
        return sorted(self._all_rounds, key=self._disturbance)[: self.wanted]

    @property
    def _all_rounds(self) -> list[Round]:
        return self._rounds if self._latest is None else [*self._rounds, self._latest]

    def quantiles(self, clock: Literal["cpu", "wall"]) -> Quantiles:
        """Of the rounds that are wanted, those that were disturbed least."""
        best = self._least_disturbed()
        return Quantiles.of([r.cpu_ms if clock == "cpu" else r.wall_ms for r in best])

    @property
    def anchor_ms(self) -> float:
        """Median of the anchor beside these rounds; 0 without an anchor."""
        return median(timed.anchor_ms for timed in self._least_disturbed())

    def time_round(self) -> None:
        """Time one more round."""
        timed, before = self._time(self._repeats), self._latest
        if self._anchor is not None:
            self._anchor.time_round()
            timed = replace(timed, anchor_ms=self._anchor.latest_ms)
        ms = self._headline_ms(timed)
        if before is not None:
            timed = replace(timed, beside_ms=self.latest_ms)
            self._keep(replace(before, beside_ms=max(before.beside_ms, ms)))
        self._latest = timed
        self._timed += 1
        insort(self._quickest_ms, ms)
        del self._quickest_ms[_QUICKEST:]
        self._least_ratio = min(self._least_ratio, timed.ratio)

    def _keep(self, timed: Round) -> None:
        self._rounds.append(timed)
        if len(self._rounds) > 2 * _KEPT * self.wanted:
            self._rounds = sorted(self._rounds, key=self._disturbance)[: _KEPT * self.wanted]

    def _headline_ms(self, timed: Round) -> float:
        return timed.cpu_ms if self._one_thread else timed.wall_ms

    @property
    def latest_ms(self) -> float:
        """Of the last round, on the clock that counts; 0 before the first."""
        return 0.0 if self._latest is None else self._headline_ms(self._latest)

    @property
    def quick_ms(self) -> float:
        """One in a hundred rounds took no longer, or a few of very many."""
        return self._quickest_ms[min(self._timed // 100, _QUICKEST - 1)]

    @property
    def clean(self) -> int:
        """How many rounds nothing disturbed, at most as many as are wanted."""
        return min(self.wanted, sum(self._disturbance(timed) <= 1 for timed in self._all_rounds))

    def _disturbance(self, timed: Round) -> float:
        """At most 1 for a round that nothing disturbed."""
        # Several threads add up on the CPU clock, and who waits for a graphics card idles or spins,
        # so there the best round is the norm.
        undisturbed = 1.0 if self._one_thread else self._least_ratio
        slowdown = timed.beside_ms / min(self.quick_ms, self._usual_ms)
        return max(
            timed.ratio / (self._settings.max_wall_cpu_ratio * undisturbed),
            slowdown / self._settings.max_slowdown,
        )

    def may_retry(self, retries: int) -> bool:
        """Whether fewer than 1 + ``retries`` times the wanted rounds were timed."""
        return self._timed < (1 + retries) * self.wanted


def interleave(
    rivals: Sequence[Stopwatch],
    others: Sequence[Stopwatch],
    retries: int,
    progress: Callable[[float], None] | None = None,
    patience_s: float = 0.0,
    clock: Clock = time.perf_counter,
) -> None:
    """Time all in turn until each has its clean rounds or tries run out.

    Args:
        rivals: Of what all others are compared with; they have a round whenever others have one.
        others: Of the networks to be measured.
        retries: Up to this many more rounds for each one that is wanted.
        progress: Called with the share that is done, from 0 to 1.
        patience_s: To go on in, however many rounds that are, until all have their clean ones.
        clock: Of patience.
    """
    stopwatches = [*rivals, *others]
    wanted = sum(stopwatch.wanted for stopwatch in stopwatches)
    end = clock() + patience_s
    done = 0
    while waiting := [
        each
        for each in stopwatches
        if each.clean < each.wanted and (each.may_retry(retries) or clock() < end)
    ]:
        for stopwatch in dict.fromkeys([*rivals, *waiting]):
            stopwatch.time_round()
        if progress is not None:
            # A quicker round can make rounds before it count no longer.
            done = max(done, sum(stopwatch.clean for stopwatch in stopwatches))
            progress(done / wanted)
    if progress is not None:
        progress(1.0)
