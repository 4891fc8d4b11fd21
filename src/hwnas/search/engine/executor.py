"""Executors that evaluate candidates, in this process or on Ray actors."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from hwnas.errors import HwnasError, WorkerError
from hwnas.search.engine.cluster import unwrapped
from hwnas.search.engine.devices import on_device, reserved_device
from hwnas.search.engine.failure import Failure, Outcome, failure_of
from hwnas.search.engine.threads import torch_threads
from hwnas.search.evaluation.evaluate import Evaluator
from hwnas.search.evaluation.scoring import Fidelity
from hwnas.search_spaces import Candidate

__all__ = ["Executor", "InProcess", "RayActors"]

_LOSSES = 3
"""Number of worker deaths after which their candidate counts as the cause."""
_START_SECONDS = 300.0


@runtime_checkable
class Executor(Protocol):
    """Executor that maps an evaluator over candidates."""

    @property
    def evaluator(self) -> Evaluator:
        """Evaluator that is mapped over candidates."""

    def map(
        self, candidates: Sequence[Candidate], fidelity: Fidelity
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield position and outcome of each candidate, in the order in which they finish.

        An evaluation that fails is yielded as a `Failure`, not raised.
        """

    def close(self) -> None:
        """Release the workers."""


class InProcess:
    """Executor that evaluates one candidate after the other, in this process.

    It can neither interrupt an evaluation that hangs nor survive one that kills the process; use
    `RayActors` for that.

    Args:
        evaluator: Evaluator to map over candidates.
        device: The `working_device` of the evaluations.
    """

    def __init__(self, evaluator: Evaluator, device: torch.device | str = "cpu") -> None:
        self.evaluator = evaluator
        self._device = torch.device(device)

    def map(
        self, candidates: Sequence[Candidate], fidelity: Fidelity
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield position and outcome of each candidate, in order."""
        for position, candidate in enumerate(candidates):
            yield position, _attempt(self.evaluator, candidate, fidelity, self._device)

    def close(self) -> None:
        """Do nothing: there are no workers to release."""


def _attempt(
    evaluator: Evaluator, candidate: Candidate, fidelity: Fidelity, device: torch.device
) -> Outcome:
    try:
        with torch_threads(), on_device(device):
            return evaluator.evaluate(candidate, fidelity)
    except Exception as error:  # a user's evaluator may fail in any way
        return failure_of(error)


class _Worker:
    """Ray actor that holds the evaluator; actors on one machine share its arrays in memory."""

    def __init__(self) -> None:
        self._evaluator: Evaluator | None = None
        self._device = torch.device("cpu")

    def prepare(self, place: Sequence[Any]) -> None:
        """Fetch the evaluator, and find the device that Ray reserved.

        Args:
            place: Object reference of the evaluator, in a list so that Ray does not resolve it
                before the actor runs. Ray would warn about it as a constructor argument.
        """
        import ray

        self._evaluator = ray.get(place[0])
        self._device = reserved_device()

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Outcome:
        """Evaluate a candidate; return an error as a `Failure`, since not every error pickles."""
        assert self._evaluator is not None
        return _attempt(self._evaluator, candidate, fidelity, self._device)


@dataclass(frozen=True)
class _Call:
    """Evaluation in progress.

    Attributes:
        position: Position of the candidate.
        actor: Actor that runs the evaluation.
        deadline: Time on the monotonic clock at which the evaluation times out; None for never.
    """

    position: int
    actor: Any
    deadline: float | None


class RayActors:
    """Executor that evaluates candidates on Ray actors.

    As many actors run as Ray has CPUs and GPUs for, up to ``workers``. The others wait for free
    ones, so machines that join a cluster are used at once. An actor that dies, alone or with its
    machine, is replaced, and its candidate is evaluated again. An evaluation that times out is
    ended together with its actor, and the actor is replaced.

    Args:
        evaluator: Evaluator to map over candidates; put into the object store once.
        workers: Largest number of actors.
        cpus: CPUs that each actor reserves.
        gpus: GPUs that each actor reserves, perhaps a share of one. Its `working_device` is then
            that GPU.
        timeout_s: Time limit of one evaluation, in seconds; None for no limit.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        workers: int,
        cpus: float = 1.0,
        gpus: float = 0.0,
        timeout_s: float | None = None,
    ) -> None:
        import ray

        self.evaluator = evaluator
        self._timeout_s = timeout_s
        remote: Any = ray.remote(_Worker)
        self._actor = remote.options(num_cpus=cpus, num_gpus=gpus)
        self._place = ray.put(evaluator)
        self._idle: list[Any] = []
        self._starting: dict[Any, Any] = {}
        self._lost_starting = 0
        for _ in range(workers):
            self._start()

    def map(
        self, candidates: Sequence[Candidate], fidelity: Fidelity
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield position and outcome of each candidate, in the order in which they finish.

        Raises:
            WorkerError: Ray is gone, Ray starts no worker, or the evaluator cannot be sent to one.
        """
        waiting = deque(enumerate(candidates))
        running: dict[Any, _Call] = {}
        losses: Counter[int] = Counter()
        try:
            while waiting or running:
                while waiting and self._idle:
                    position, candidate = waiting.popleft()
                    call = self._call(position)
                    running[call.actor.evaluate.remote(candidate, fidelity)] = call
                for reference in self._wait(running):
                    call = running.pop(reference)
                    outcome = self._outcome(reference, call)
                    if outcome is None:
                        losses[call.position] += 1
                        if losses[call.position] < _LOSSES:
                            waiting.appendleft((call.position, candidates[call.position]))
                            continue
                        reason = f"the process that evaluated the candidate died {_LOSSES} times"
                        outcome = Failure("worker died", reason, _LOSSES)
                    yield call.position, outcome
                for reference in self._overdue(running):
                    call = running.pop(reference)
                    self._replace(call.actor)
                    yield (
                        call.position,
                        Failure("timed out", f"the evaluation took over {self._timeout_s:g} s"),
                    )
        finally:
            for call in running.values():  # results that are no longer needed
                self._replace(call.actor)

    def _call(self, position: int) -> _Call:
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        return _Call(position, self._idle.pop(), deadline)

    def _wait(self, running: dict[Any, _Call]) -> list[Any]:
        """Wait for finished calls and return them; register actors that have started meanwhile."""
        import ray

        deadlines = [call.deadline for call in running.values() if call.deadline is not None]
        patience = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        if not running:
            patience = _START_SECONDS
        done, _ = ray.wait([*running, *self._starting], num_returns=1, timeout=patience)
        if not done and not running:
            raise WorkerError(
                f"Ray has started no worker in {_START_SECONDS / 60:g} minutes; check with `ray "
                "status` whether CPUs and GPUs are free, or lower search.workers"
            )
        for reference in done:
            if reference in self._starting:
                self._started(reference)
        return [reference for reference in done if reference in running]

    def _overdue(self, running: dict[Any, _Call]) -> list[Any]:
        now = time.monotonic()
        return [r for r, c in running.items() if c.deadline is not None and c.deadline <= now]

    def _outcome(self, reference: Any, call: _Call) -> Outcome | None:
        """Return the outcome of a finished call; None if its actor died."""
        import ray

        try:
            found: Outcome = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # the outcome does not pickle
            self._idle.append(call.actor)
            return failure_of(error.cause)
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError):
            self._replace(call.actor)
            return None
        except ray.exceptions.RayError as error:
            raise unwrapped(error) from error
        self._idle.append(call.actor)
        return found

    def _start(self) -> None:
        actor = self._actor.remote()
        self._starting[actor.prepare.remote([self._place])] = actor

    def _started(self, reference: Any) -> None:
        import ray

        actor = self._starting.pop(reference)
        try:
            ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, HwnasError):
                raise error.cause from error
            [reason, *_] = str(error.cause).splitlines() or [type(error.cause).__name__]
            raise WorkerError(
                f"a worker cannot load the evaluator ({reason}); workers need the same modules and "
                "files as this process"
            ) from error
        except ray.exceptions.RayActorError as error:
            self._lost_starting += 1
            if self._lost_starting > _LOSSES * (1 + len(self._starting) + len(self._idle)):
                raise unwrapped(error) from error
            self._replace(actor)
            return
        self._lost_starting = 0
        self._idle.append(actor)

    def _replace(self, actor: Any) -> None:
        _end(actor)
        self._start()

    def close(self) -> None:
        """End the actors."""
        for actor in (*self._idle, *self._starting.values()):
            _end(actor)
        self._idle.clear()
        self._starting.clear()


def _end(actor: Any) -> None:
    import ray

    with contextlib.suppress(ray.exceptions.RayError, ValueError):
        ray.kill(actor)
