"""Queue of jobs on disk, so that none is lost or done twice when an agent dies.

A job is a file ``ID.json``, which is replaced as a whole when its state changes. The host chooses
the id, so a host that did not receive the answer can send the job again.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hwnas.atomic import storage_errors, write_json
from hwnas.deploy.agent.measuring_job import JobState, MeasuringJob
from hwnas.deploy.agent.protocol import AgentLimits, refusal
from hwnas.deploy.agent.server.model_store import MissingModel
from hwnas.deploy.agent.signing import digest_of
from hwnas.deploy.error_line import first_line
from hwnas.errors import ArtifactError, ConfigError, DeviceError, HwnasError, StorageError

__all__ = ["JobQueue", "Run"]

SCHEMA = 1
_ID = re.compile(r"[0-9a-f]{32}")
_MOST_ATTEMPTS = 5

Run = Callable[[MeasuringJob, Callable[[float], None], threading.Event], JobState | None]
"""Function that does a job, and returns its final state, or None if it was stopped.

Its arguments are the job, a function to report the completed share, and an event that stops it.
"""


@dataclass
class _Entry:
    """Job as held in memory.

    Attributes:
        number: Position of the job in the order of execution.
        digest: Digest of the job as JSON, which distinguishes it from others.
        job: Job to do; None once it is over, since its results are on disk only.
        state: State of the job; None once it is over and on disk.
        attempts: Number of times that the job was started.
        stop: Event that ends the job while it runs.
        dropped: Whether its results are not wanted any more.
    """

    number: int
    digest: str
    job: MeasuringJob | None
    state: JobState | None
    attempts: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    dropped: bool = False


class JobQueue:
    """Queue of jobs in a folder, done one at a time.

    Args:
        folder: Folder of the jobs; created if missing. Jobs that are in it are resumed.
        limits: Limits on the number of waiting jobs, and of finished jobs that are kept.
    """

    def __init__(self, folder: Path, limits: AgentLimits) -> None:
        self._folder, self._limits = folder, limits
        self._changed = threading.Condition()
        self._closed = False
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._entries = self._read_all()

    def submit(self, id_: str, job: MeasuringJob) -> JobState:
        """Queue a job unless it is there already, and return its state.

        Raises:
            ConfigError: The id is not valid, or is that of another job.
            DeviceError: Too many jobs wait.
            StorageError: The job cannot be written.
        """
        path = self._path(id_)
        with self._changed:
            digest = _digest(job)
            if id_ in self._entries:
                if self._entries[id_].digest != digest:
                    raise ConfigError(f"job id {id_} belongs to another job; choose a new one")
                if (state := self._known_state(id_)) is not None:
                    return state
            if len(self._unfinished()) >= self._limits.waiting:
                raise DeviceError(f"{self._limits.waiting} jobs wait already; send this one later")
            number = 1 + max((entry.number for entry in self._entries.values()), default=0)
            entry = _Entry(number, digest, job, JobState("waiting"))
            self._write(path, entry, job)
            self._entries[id_] = entry
            self._changed.notify_all()
            return self._state(id_)

    def state(self, id_: str, wait_s: float = 0.0) -> JobState | None:
        """Return the state of a job, after waiting up to ``wait_s`` seconds for its end.

        Returns:
            None if there is no such job, or its results are damaged; the host then sends it again.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._is_over(id_), wait_s)
            return self._known_state(id_)

    def drop(self, id_: str) -> bool:
        """Stop a job if it is not over, delete its results, and return whether it existed."""
        path = self._path(id_)
        with self._changed:
            entry = self._entries.pop(id_, None)
            if entry is None:
                return False
            entry.dropped = True
            entry.stop.set()
            path.unlink(missing_ok=True)
            self._changed.notify_all()
            return True

    def needed(self) -> set[str]:
        """Return the models of all jobs that are not over."""
        with self._changed:
            jobs = [entry.job for entry in self._unfinished()]
            return {model for job in jobs if job is not None for model in job.models}

    def __len__(self) -> int:
        """Return the number of jobs that wait or run."""
        with self._changed:
            return len(self._unfinished())

    def work(self, run: Run) -> None:
        """Do one job after the other until the queue is closed."""
        while (following := self._next()) is not None:
            self._do(*following, run)

    def close(self) -> None:
        """Stop the running job; it is done anew when the agent starts again."""
        with self._changed:
            self._closed = True
            for entry in self._entries.values():
                entry.stop.set()
            self._changed.notify_all()

    def _next(self) -> tuple[str, _Entry, MeasuringJob] | None:
        """Wait for a job; return None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._unfinished())
            if self._closed:
                return None
            id_, entry = min(
                ((id_, e) for id_, e in self._entries.items() if e.job is not None),
                key=lambda each: each[1].number,
            )
            assert entry.job is not None
            entry.attempts += 1
            entry.state = JobState("running")
            return id_, entry, entry.job

    def _do(self, id_: str, entry: _Entry, job: MeasuringJob, run: Run) -> None:
        def progress(share: float) -> None:
            with self._changed:
                # Late progress must not set a finished job back to running.
                if entry.state is not None and entry.state.state == "running":
                    entry.state = JobState("running", share=share)

        try:
            self._write(self._path(id_), entry, job)
            found = self._attempt(entry, job, run, progress)
        except MissingModel:
            self.drop(id_)  # the host finds the job unknown, and sends it again with its models
            return
        except HwnasError as error:
            found = _failed(error)
        except OSError as error:  # for example, no memory for another process
            found = _failed(DeviceError(f"the job could not be started: {error}"))
        except Exception as error:  # whatever it is, the other jobs have to be done
            traceback.print_exc(file=sys.stderr)
            reason = f"{type(error).__name__}: {error}"
            found = _failed(DeviceError(f"the agent failed during the job: {reason}"))
        with self._changed:
            if found is None and not entry.dropped:  # the agent is ending
                entry.attempts -= 1
                found = JobState("waiting")
            if found is not None and not entry.dropped:
                self._keep(id_, entry, job, found)
            elif id_ not in self._entries:  # otherwise it was sent again
                self._path(id_).unlink(missing_ok=True)
            self._changed.notify_all()

    def _attempt(
        self, entry: _Entry, job: MeasuringJob, run: Run, progress: Callable[[float], None]
    ) -> JobState | None:
        if entry.attempts > _MOST_ATTEMPTS:
            raise DeviceError(
                f"the agent ended {_MOST_ATTEMPTS} times while this job ran, perhaps for lack "
                "of memory; send smaller networks"
            )
        return run(job, progress, entry.stop)

    def _keep(self, id_: str, entry: _Entry, job: MeasuringJob, found: JobState) -> None:
        """Write the outcome of a job to disk; a finished job then stays on disk only."""
        entry.state = found
        try:
            self._write(self._path(id_), entry, job)
        except StorageError as error:
            entry.job, entry.state = None, _failed(error)
            return
        if found.is_over:
            entry.job = entry.state = None
        over = sorted((e.number, i) for i, e in self._entries.items() if e.job is None)
        for _, oldest in over[: max(0, len(over) - self._limits.kept)]:
            del self._entries[oldest]
            self._path(oldest).unlink(missing_ok=True)

    def _unfinished(self) -> list[_Entry]:
        return [entry for entry in self._entries.values() if entry.job is not None]

    def _is_over(self, id_: str) -> bool:
        return id_ not in self._entries or self._entries[id_].job is None

    def _known_state(self, id_: str) -> JobState | None:
        """Return the state of a job, if known; set aside a job whose results are damaged."""
        if id_ not in self._entries:
            return None
        try:
            return self._state(id_)
        except ArtifactError:
            del self._entries[id_]
            _set_aside(self._path(id_))
            return None

    def _state(self, id_: str) -> JobState:
        entry = self._entries[id_]
        if entry.state is None:
            return self._read(self._path(id_))[1]
        if entry.state.state != "waiting":
            return entry.state
        ahead = sum(other.number < entry.number for other in self._unfinished())
        return JobState("waiting", ahead=ahead)

    def _write(self, path: Path, entry: _Entry, job: MeasuringJob) -> None:
        over = entry.state is not None and entry.state.is_over
        values: dict[str, Any] = {
            "schema": SCHEMA,
            "number": entry.number,
            "attempts": entry.attempts,
            "job": job.to_json(),
            "state": entry.state.to_json() if over and entry.state is not None else None,
        }
        write_json(path, values)

    def _read_all(self) -> dict[str, _Entry]:
        """Return all jobs that an earlier agent left in the folder; damaged files are set aside."""
        found = {}
        for path in self._folder.glob("*.json"):
            try:
                found[path.stem] = self._read(path)[0]
            except ArtifactError:
                _set_aside(path)
        for leftover in self._folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        return found

    def _read(self, path: Path) -> tuple[_Entry, JobState]:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']!r} is not {SCHEMA}")
            job = MeasuringJob.from_json(data["job"])
            over = data["state"] is not None
            state = JobState.from_json(data["state"]) if over else JobState("waiting")
            number, attempts = int(data["number"]), int(data["attempts"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{path.name} is damaged: {first_line(error)}") from error
        entry = _Entry(number, _digest(job), job, state, attempts)
        if over:
            entry.job = entry.state = None
        return entry, state

    def _path(self, id_: str) -> Path:
        if not _ID.fullmatch(id_):
            raise ConfigError(f"the job id is {id_[:80]!r}; expected 32 hexadecimal digits")
        return self._folder / f"{id_}.json"


def _set_aside(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rename(path.with_suffix(".damaged"))


def _failed(error: HwnasError) -> JobState:
    return JobState("failed", failure=refusal(0, error).body)


def _digest(job: MeasuringJob) -> str:
    return digest_of(json.dumps(job.to_json(), sort_keys=True).encode())
