"""Separate process for each job, with limits on time and memory; it is killed if it breaks one.

Data from a host is loaded in that process only. The process is started from an argument list, in an
empty folder, with an environment that holds no secrets. It does one job and then ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hwnas.atomic import storage_errors, write_json
from hwnas.deploy.agent.measuring_job import JobState, MeasuringJob
from hwnas.deploy.agent.protocol import AgentLimits
from hwnas.errors import ArtifactError, DeviceError

__all__ = ["JOB", "RESULT", "Sandbox"]

JOB, RESULT = "job.json", "result.json"
_WORKER = "hwnas.deploy.agent.server.worker"
_STDERR = "stderr.txt"
_GLANCE_S = 0.25
_LONGEST_LINE, _LONGEST_ERROR, _LARGEST_RESULT = 100, 2000, 16 * 2**20
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Sandbox:
    """Runner of jobs, each in a separate process.

    Attributes:
        folder: Folder for the files of such processes; emptied on construction.
        code: Location that the processes import hwnas from.
        limits: Limits on time and memory.
        copy: Function that copies a model to a file, and verifies it.
    """

    folder: Path
    code: Path
    limits: AgentLimits
    copy: Callable[[str, Path], None]

    def __post_init__(self) -> None:
        with storage_errors(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)

    def __call__(
        self, job: MeasuringJob, progress: Callable[[float], None], stop: threading.Event
    ) -> JobState | None:
        """Do a job, and return its final state; None if it was stopped.

        Raises:
            DeviceError: The process hung, died, or broke a limit.
            MissingModel: A model does not exist, or was damaged.
            StorageError: There is no space for the job's files.
        """
        with self._work_folder(job) as folder, (folder / _STDERR).open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _WORKER],
                stdin=subprocess.PIPE,  # closed when the agent dies, which ends the process
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                env=self._environment(folder),
                start_new_session=True,
            )
            try:
                in_time = _watch(process, progress, time.monotonic() + self._seconds(job), stop)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            if stop.is_set():
                return None
            if not in_time:
                raise DeviceError(
                    f"{len(job.models)} networks were not measured within {self._seconds(job):g} s "
                    "and were stopped; send smaller ones, or start the agent with larger --seconds"
                )
            return _found(folder, process.returncode)

    def _seconds(self, job: MeasuringJob) -> float:
        return self.limits.network_s * (1 + len(job.subjects)) + job.settings.patience_s

    @contextlib.contextmanager
    def _work_folder(self, job: MeasuringJob) -> Iterator[Path]:
        """Yield a folder with the job and its models, and delete it at the end."""
        with storage_errors(self.folder), tempfile.TemporaryDirectory(dir=self.folder) as name:
            folder = Path(name)
            for model in job.models:
                self.copy(model, folder / f"{model}.onnx")
            cores = os.cpu_count() or 1
            limits = {
                "RLIMIT_DATA": self.limits.memory_bytes,
                "RLIMIT_CPU": int(self._seconds(job) * cores) + 1,
                "RLIMIT_FSIZE": 4 * self.limits.model_bytes,
                "RLIMIT_NOFILE": 256,
                "RLIMIT_CORE": 0,
            }
            write_json(folder / JOB, {"job": job.to_json(), "limits": limits})
            yield folder

    def _environment(self, folder: Path) -> dict[str, str]:
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        place = os.fspath(folder)
        own = {"HOME": place, "HWNAS_HOME": place, "TMPDIR": place}
        path = os.pathsep.join([os.fspath(self.code), *_package_folders()])
        python = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
        return {**passed_on, **own, **python}


def _package_folders() -> list[str]:
    """Return the package folders of this process's ``PYTHONPATH``."""
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def _watch(
    process: subprocess.Popen[bytes],
    progress: Callable[[float], None],
    deadline: float,
    stop: threading.Event,
) -> bool:
    """Wait until a process ends or has to be ended; return whether it ended in time."""
    silent = threading.Event()
    assert process.stdout is not None
    reader = threading.Thread(
        target=_read_progress, args=(process.stdout, progress, silent), daemon=True
    )
    reader.start()
    while not stop.is_set() and time.monotonic() < deadline:
        if silent.wait(_GLANCE_S):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GLANCE_S)
                return True
    return False


def _read_progress(
    output: IO[bytes], progress: Callable[[float], None], silent: threading.Event
) -> None:
    """Read completed shares from 0 to 1, one a line, until the other end closes."""
    while line := output.readline(_LONGEST_LINE):
        with contextlib.suppress(ValueError):
            progress(min(max(float(line), 0.0), 1.0))
    silent.set()


def _found(folder: Path, status: int) -> JobState:
    """Return the result of a process that ended."""
    result = folder / RESULT
    if status == 0 and result.is_file() and result.stat().st_size <= _LARGEST_RESULT:
        with contextlib.suppress(ArtifactError, ValueError, RecursionError, TypeError):
            return JobState.from_json(json.loads(result.read_text(encoding="utf-8")))
    with (folder / _STDERR).open("rb") as errors:
        errors.seek(max(0, (folder / _STDERR).stat().st_size - _LONGEST_ERROR))
        lines = errors.read().decode(errors="replace").strip().splitlines() or ["no error message"]
    if status < 0:
        how = f"was killed by signal {-status}, perhaps for lack of memory or time"
    else:
        how = f"ended with status {status}"
    raise DeviceError(f"the measuring process {how}: {lines[-1]}")
