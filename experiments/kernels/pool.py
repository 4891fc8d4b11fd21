"""Tasks in separate processes, each of which may crash, hang or break the GPU for itself only.

A process is forked from one that has imported everything and never touched the GPU, so it starts at
once. It runs one task after the other until one fails; then another process continues with the
rest.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

from experiments.kernels.place import Place

__all__ = ["NOT_REACHED", "Outcome", "Task", "dealt", "in_processes"]

T = TypeVar("T")

NOT_REACHED = "not reached in the time that there was"
_PRELOADED = ["experiments.kernels.stages", "torch._inductor.compile_fx"]


@dataclass(frozen=True)
class Task:
    """Task for a process.

    Attributes:
        work: Module-level function that is called with the place and the argument.
        argument: Argument; like the result, it must be picklable.
    """

    work: Callable[[Place, Any], dict[str, Any]]
    argument: Any


@dataclass(frozen=True)
class Outcome:
    """Outcome of a task.

    Attributes:
        task: The task.
        found: Result of the task; empty if it failed.
        reason: Reason of the failure.
    """

    task: Task
    found: dict[str, Any]
    reason: str = ""


def dealt(tasks: Sequence[T], lines: int) -> list[Sequence[T]]:
    """Split tasks into ``lines`` sequences of nearly equal length, keeping neighbours together."""
    size, longer = divmod(len(tasks), lines)
    ends = [i * size + min(i, longer) for i in range(lines + 1)]
    return [tasks[begin:end] for begin, end in itertools.pairwise(ends)]


def in_processes(
    place: Place, lines: Sequence[Sequence[Task]], until: float, each: float
) -> Iterator[Outcome]:
    """Run tasks in processes: the tasks of each line one by one, the lines in parallel.

    Args:
        place: Place where the tasks run.
        lines: Sequences of tasks.
        until: Time of `time.monotonic` at which all processes are stopped.
        each: Time limit of one task, in seconds.

    Yields:
        Outcomes in the order in which they arrive.
    """
    if time.monotonic() >= until:
        yield from (Outcome(task, {}, NOT_REACHED) for line in lines for task in line)
        return
    filled = [line for line in lines if line]
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, len(filled)))
    running = [_Line(place, line, until, each, threads) for line in filled]
    try:
        while running:
            ends = min(line.limit for line in running)
            ready = wait([line.receiver for line in running], max(0.0, ends - time.monotonic()))
            for line in list(running):
                if line.receiver in ready:
                    yield from line.heard()
                elif time.monotonic() >= line.limit:
                    yield from line.given_up()
                if line.done:
                    running.remove(line)
    finally:
        for line in running:
            line.stop()


@dataclass
class _Line:
    place: Place
    tasks: Sequence[Task]
    until: float
    each: float
    threads: int
    at: int = 0
    receiver: Connection = field(init=False)
    process: BaseProcess = field(init=False)
    limit: float = field(init=False)

    def __post_init__(self) -> None:
        self._start()

    @property
    def done(self) -> bool:
        """True if all tasks are done."""
        return self.at == len(self.tasks)

    def heard(self) -> Iterator[Outcome]:
        """Yield the outcome that the process has sent, or that the process has ended."""
        try:
            found, reason = self.receiver.recv()
        except (EOFError, OSError):
            self.process.join(5)
            found, reason = {}, f"its process ended with status {self.process.exitcode}"
        yield self._next(found, reason)
        if reason or self.done:
            self._again()
        self.limit = min(self.until, time.monotonic() + self.each)

    def given_up(self) -> Iterator[Outcome]:
        """Stop the process at the time limit of one task or of all, and yield the failures."""
        self.stop()
        if time.monotonic() < self.until:
            yield self._next({}, f"it took more than {self.each:.0f} s")
            self._again()
            return
        while not self.done:
            yield self._next({}, NOT_REACHED)

    def stop(self) -> None:
        """Kill the process and close its pipe."""
        self.process.kill()
        self.process.join()
        self.receiver.close()

    def _next(self, found: dict[str, Any], reason: str) -> Outcome:
        self.at += 1
        return Outcome(self.tasks[self.at - 1], found, reason)

    def _again(self) -> None:
        """Restart with the remaining tasks, if any; a process that has finished ends by itself."""
        self.process.join(5 if self.done else 0)
        self.stop()
        if not self.done:
            self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context(self.place.start)
        if self.place.start == "forkserver":
            context.set_forkserver_preload(_PRELOADED)
        self.receiver, sender = context.Pipe(duplex=False)
        arguments = (self.place, self.threads, list(self.tasks[self.at :]), sender)
        self.process = context.Process(target=_worked, args=arguments)
        self.process.start()
        sender.close()
        self.limit = min(self.until, time.monotonic() + self.each)


def _worked(place: Place, threads: int, tasks: Sequence[Task], sender: Connection) -> None:
    """Run tasks in the process until one fails, after which the GPU may be unusable."""
    torch.set_num_threads(threads)
    for task in tasks:
        try:
            found = task.work(place, task.argument)
            place.wait()
        except Exception as error:  # a kernel, a compiler or a driver may raise anything
            reason = " ".join(str(error).split())[:500]
            sender.send(({}, f"{type(error).__name__}: {reason}"))
            return
        sender.send((found, ""))
