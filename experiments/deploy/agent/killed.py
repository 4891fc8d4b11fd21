"""Jobs of an agent that is killed repeatedly, and the record of them in its folder."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from experiments.deploy.agent.outside import OutsideAgent
from hwnas.deploy import Measurement, Target, TimingSettings, measure
from hwnas.errors import HwnasError

__all__ = ["BRIEF", "Tally", "Watch", "jobs_under_kills"]

BRIEF = TimingSettings(warmup=1, rounds=3, round_ms=0.5, max_seconds=0.05, retries=0)
_GLANCE_S, _LATEST_S = 0.02, 1.0
_LAST = 5
"""Number of jobs at the end without a kill, since such a kill could come after the last job."""


@dataclass(frozen=True)
class Tally:
    """Outcome of the jobs.

    Attributes:
        answered: Number of jobs whose caller got a whole measurement.
        lost: Error message of each other job.
        doubled: Description of each job that was done, queued or delivered more than once.
        begun: Number of times that a process began a job, including jobs that the agent's end
            interrupted.
        kills: Number of times that the agent was killed.
        interrupted: Number of kills that interrupted a running job.
        kept: Number of finished jobs whose results the agent still has, since it died before it was
            told to delete them.
        seconds: Time from the first job to the last answer.
    """

    answered: int
    lost: list[str]
    doubled: list[str]
    begun: int
    kills: int
    interrupted: int
    kept: int
    seconds: float


class Watch:
    """Continuous observer of an agent's folder, from outside the agent.

    A running job is a folder in ``work``; it lasts much longer than the interval between two
    observations. A queued job, or one whose results are kept, is a file in ``jobs``.

    Args:
        folder: Folder of the agent.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock, self._closed = folder, threading.Lock(), threading.Event()
        self._seen: set[Path] = set()
        self._begun: list[tuple[str, int]] = []
        self._ids: Counter[str] = Counter()
        self._over: dict[str, int] = {}
        self._life = self.interrupted = 0

    @contextlib.contextmanager
    def looking(self) -> Iterator[Watch]:
        """Observe the folder until the context ends."""
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield self
        finally:
            self._closed.set()
            thread.join()

    def answered(self, job: str) -> None:
        """Note that a caller has the results of a job, so that it must not be begun any more."""
        with self._lock:
            self._over.setdefault(job, self._life)

    def life_ended(self) -> None:
        """Note the files on disk while the agent is dead and nothing changes there."""
        self.glance()
        with self._lock:
            for path in self._folder.glob("jobs/*.json"):
                if _has_ended(found := _read(path)):
                    self._over.setdefault(_name(found), self._life)
            self.interrupted += any(self._folder.glob("work/*/job.json"))
            self._life += 1

    def glance(self) -> None:
        """Note the jobs that are new, and those that were begun."""
        with self._lock:
            for path in [*self._folder.glob("work/*/job.json"), *self._folder.glob("jobs/*.json")]:
                if path in self._seen or not (found := _read(path)):
                    continue
                self._seen.add(path)
                if path.parent.name == "jobs":
                    self._ids[_name(found)] += 1
                else:
                    self._begun.append((_name(found), self._life))

    @property
    def begun(self) -> int:
        """Number of times that a job was begun."""
        return len(self._begun)

    def doubled(self) -> list[str]:
        """Return a description of each job that was done twice.

        Such a job was queued twice, begun twice in one life of the agent, or begun after its end.
        """
        found = [f"{job} was queued as {n} jobs" for job, n in self._ids.items() if n > 1]
        for (job, life), times in Counter(self._begun).items():
            if times > 1:
                found.append(f"{job} was begun {times} times in one life of the agent")
            if life > self._over.get(job, life):
                found.append(f"{job} was begun again after its end")
        return found

    def _look(self) -> None:
        while not self._closed.wait(_GLANCE_S):
            self.glance()


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a job's file, or None if the file no longer exists."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found


def _has_ended(found: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    return found is not None and found["state"] is not None


def _name(found: dict[str, Any]) -> str:
    return str(next(iter(found["job"]["subjects"])))


def jobs_under_kills(
    agent: OutsideAgent, model: Path, target: Target, counts: tuple[int, int, int], seed: int = 0
) -> Tally:
    """Send brief jobs to an agent that is killed at random moments in between; return the tally.

    Args:
        agent: Running agent, which is the device of the target.
        model: ONNX file to be timed.
        target: Target on the agent.
        counts: Number of jobs, of kills, and of clients that each send one job at a time.
        seed: Seed of the moments.
    """
    jobs, kills, clients = counts
    began = time.monotonic()
    with Watch(agent.folder).looking() as watch, ThreadPoolExecutor(clients) as pool:
        ended = [pool.submit(_one_job, f"job {i}", model, target, watch) for i in range(jobs)]
        killed = _kill_in_between(agent, watch, ended, kills, random.Random(seed))
        wait(ended)
        seconds = time.monotonic() - began
    answers = [future.result() for future in ended]
    whole = [each for each in answers if isinstance(each, Measurement)]
    kept = {path for path in agent.folder.glob("jobs/*.json") if _has_ended(_read(path))}
    left = {*agent.folder.glob("jobs/*")} - kept
    again = [f"{path.name} was left to be done" for path in left]
    twice = Counter((each.cpu_ms, each.wall_ms) for each in whole)  # no two are equal by chance
    delivered = [f"a measurement was delivered {n} times" for n in twice.values() if n > 1]
    return Tally(
        len(whole),
        [str(each) for each in answers if not isinstance(each, Measurement)],
        [*watch.doubled(), *delivered, *again],
        watch.begun,
        killed,
        watch.interrupted,
        len(kept),
        seconds,
    )


def _one_job(job: str, model: Path, target: Target, watch: Watch) -> Measurement | HwnasError:
    try:
        found = measure({job: model}, target, BRIEF)[job]
    except HwnasError as error:
        return error
    finally:
        watch.answered(job)
    return found


def _kill_in_between(
    agent: OutsideAgent,
    watch: Watch,
    ended: list[Future[Measurement | HwnasError]],
    kills: int,
    rng: random.Random,
) -> int:
    """Kill and restart an agent, each time a random delay after a number of jobs has ended.

    Returns:
        The number of kills.
    """
    moments = sorted(rng.sample(range(max(kills, len(ended) - _LAST)), kills))
    for number, moment in enumerate(moments):
        while sum(future.done() for future in ended) < moment:
            time.sleep(_GLANCE_S)
        time.sleep(rng.uniform(0, _LATEST_S))
        if all(future.done() for future in ended):
            return number
        agent.kill()
        watch.life_ended()
        agent.start()
        print(f"killed {number + 1} times, after {moment} of {len(ended)} jobs", flush=True)
    return kills
