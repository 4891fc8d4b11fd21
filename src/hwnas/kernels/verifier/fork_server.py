"""Fork server: processes in milliseconds for code that may hang, crash or take all memory.

The server imports PyTorch and Triton, which takes seconds. It then forks for each job.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import torch
from torch import Tensor

import hwnas
from hwnas.errors import DeviceError, KernelError
from hwnas.kernels.verifier.wire import frame, message, messages, received

__all__ = ["ForkServer", "JobLimits", "JobResult"]

_CHILD = "hwnas.kernels.verifier.process.child"
_WORD = 8
_LAST_BYTES = 8192
_PASSED_ON: tuple[str, ...] = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "HOME",
    "TRITON_",
)
_PASSED_ON += ("CUDA_", "NVIDIA_", "CC", "CPATH", "LIBRARY_PATH")


@dataclass(frozen=True)
class JobLimits:
    """Resource limits of a job.

    Attributes:
        seconds: Time limit in seconds of one call, or of importing the file.
        memory_bytes: Memory limit in bytes, on top of what PyTorch itself uses. On a GPU it does
            not limit the process, only the size of its answers.
    """

    seconds: float = 60.0
    memory_bytes: int = 4 * 2**30


@dataclass(frozen=True)
class JobResult:
    """Result of a job that has ended.

    Attributes:
        answers: Messages that the job sent before it ended.
        how: Reason why the job ended early, or None.
        hung: Whether the job was killed, for taking too long or sending a damaged answer.
        refused: Forbidden system calls of the job, as the fork server observed them.
        unguarded: Reason why system calls were not supervised; empty if they were.
        seconds: Time in seconds that each answer took.
    """

    answers: Sequence[tuple[dict[str, Any], list[Tensor]]]
    how: str | None
    hung: bool = False
    refused: Sequence[str] = ()
    unguarded: str = ""
    seconds: Sequence[float] = ()


class ForkServer:
    """Fork server that runs each job in a new process; used in a ``with`` statement.

    Attributes:
        device: Device on which kernels run.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
            self._folder.cleanup()

    def job(
        self,
        header: Mapping[str, Any],
        parts: Sequence[bytes],
        path: Path | None,
        limits: JobLimits,
    ) -> JobResult:
        """Run a job in a new process, and return its result.

        Args:
            header: Description of the job, which `hwnas.kernels.verifier.process.child` reads.
            parts: Messages, one for each part of the job. The first is sent when the file has been
                imported, and each other one when the previous one has been answered.
            path: File whose code runs; its name locates the failing line in the log of a crash.
            limits: Limits of each part.

        Raises:
            DeviceError: No process can be made.
        """
        if self._process is None:
            self._start()
        memory_bytes = limits.memory_bytes if self.device.type == "cpu" else None
        common = {"memory_bytes": memory_bytes, "path": path and str(path)}
        first = message({**common, "device": str(self.device), **header})
        mine, theirs = socket.socketpair()
        with mine, tempfile.TemporaryFile() as log:
            with theirs:
                socket.send_fds(self._control, [b"!"], [theirs.fileno(), log.fileno()])
            pid = self._word()
            answers: list[tuple[dict[str, Any], list[Tensor]]] = []
            seconds: list[float] = []
            hung, how, ended = True, None, False
            try:
                hung, how = _talk(mine, [first, *parts], answers, seconds, limits)
                mine.close()
                ended = not hung and bool(select.select([self._control], [], [], limits.seconds)[0])
            finally:
                if hung or not ended:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
            status = self._word()
            seen = json.loads(self._exactly(self._word()))
            whole = len(answers) == len(parts) + 1
            how = how or (None if whole else _how(status, hung, limits, log, path))
            return JobResult(answers, how, hung, seen["refused"], seen["unguarded"], seconds)

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _CHILD],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd=self._folder.name,
                env=self._environment(),
            )

    def _environment(self) -> dict[str, str]:
        """Return an environment without secrets, and with one thread for repeatable sums."""
        passed_on = {k: v for k, v in os.environ.items() if k.startswith(_PASSED_ON)}
        code = str(Path(hwnas.__file__).parents[1])
        passed_on |= {"PYTHONPATH": os.pathsep.join([code, *filter(None, sys.path)])}
        passed_on.pop("TRITON_INTERPRET", None)
        if self.device.type == "cpu":
            passed_on["TRITON_INTERPRET"] = "1"
        return passed_on | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def _word(self) -> int:
        return int.from_bytes(self._exactly(_WORD), "little", signed=True)

    def _exactly(self, size: int) -> bytes:
        found = self._control.recv(size, socket.MSG_WAITALL) if size else b""
        if len(found) < size:
            raise DeviceError(
                f"cannot start processes for kernels; run `python -m {_CHILD}` to see why"
            )
        return found


def _talk(
    channel: socket.socket,
    parts: Sequence[bytes],
    answers: list[tuple[dict[str, Any], list[Tensor]]],
    seconds: list[float],
    limits: JobLimits,
) -> tuple[bool, str | None]:
    """Send one part after the other, and append the answers and their times to the lists.

    Returns:
        Whether the process has to be killed, and what was wrong with an answer.
    """
    end = 0.0

    def read(size: int) -> bytes:
        channel.settimeout(max(0.001, end - time.monotonic()))
        return channel.recv(size)

    for part in parts:
        start = time.monotonic()
        end = start + limits.seconds
        try:
            channel.settimeout(limits.seconds)
            channel.sendall(frame(part))
            answer = received(read, limits.memory_bytes)
            if answer is None:
                break
            found = list(messages(answer))
        except TimeoutError:
            return True, None
        except OSError:  # the process has ended
            break
        except KernelError as error:
            return True, str(error)
        if len(found) != 1:
            return True, "the kernel's process sent back damaged results"
        answers += found
        seconds.append(time.monotonic() - start)
    return False, None


def _how(
    status: int, hung: bool, limits: JobLimits, log: IO[bytes], path: Path | None
) -> str | None:
    """Return why a process ended, and at which line of the file if that is known."""
    if hung:
        return f"no answer within {limits.seconds:g} s"
    if status == 0 and path is None:
        return "the process ended early"
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _LAST_BYTES))
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    at = [line for line in lines if path is not None and f'"{path}"' in line]
    where = ""
    if at and "line" in at[0]:
        where = f" at line {at[0].split('line ')[1].split()[0]}"
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}{where}"
    return f"the process ended itself with status {status}{where}"
