"""Where candidates are evaluated: in this process, or on Ray actors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from hwnas.search.cluster import unwrapped
from hwnas.search.evaluate import Evaluation, Evaluator, Fidelity
from hwnas.search_spaces import Candidate

__all__ = ["Executor", "InProcess", "RayActors"]


@runtime_checkable
class Executor(Protocol):
    """Maps an evaluator over candidates."""

    @property
    def evaluator(self) -> Evaluator:
        """What is mapped."""

    def map(
        self, candidates: Sequence[Candidate], fidelity: Fidelity
    ) -> Iterator[tuple[int, Evaluation]]:
        """Position and evaluation of each candidate, in the order in which they finish."""

    def close(self) -> None:
        """Let the workers go."""


class InProcess:
    """Evaluates one candidate after the other, here."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator

    def map(
        self, candidates: Sequence[Candidate], fidelity: Fidelity
    ) -> Iterator[tuple[int, Evaluation]]:
        """Position and evaluation of each candidate, in order."""
        for position, candidate in enumerate(candidates):
            yield position, self.evaluator.evaluate(candidate, fidelity)

    def close(self) -> None:
        """Nothing to let go."""


class _Worker:
    """The evaluator in an actor. Its arrays live in the object store, once for all actors."""

    def __init__(self) -> None:
        self._evaluator: Evaluator | None = None

    def evaluate(
        self, place: Sequence[Any], candidate: Candidate, fidelity: Fidelity
    ) -> Evaluation:
        """Evaluate with the evaluator that lies at a place.

        The place comes with every call, in a list so that Ray does not copy what is there: an
        actor that was started again finds it, and one with arguments would make Ray warn.
        """
        if self._evaluator is None:
            import ray

            self._evaluator = ray.get(place[0])
        assert self._evaluator is not None
        return self._evaluator.evaluate(candidate, fidelity)


class RayActors:
    """Evaluates on Ray actors; one that dies is replaced and its candidate evaluated again.

    Args:
        evaluator: What is mapped; put into the object store once.
        workers: Number of actors.
        cpus: CPUs that each actor reserves.
    """

    def __init__(self, evaluator: Evaluator, workers: int, cpus: float = 1.0) -> None:
        import ray

        self.evaluator = evaluator
        remote: Any = ray.remote(_Worker)
        actor = remote.options(num_cpus=cpus, max_restarts=-1, max_task_retries=-1)
        self._place = ray.put(evaluator)
        self._actors = [actor.remote() for _ in range(workers)]

    def map(
        self, candidates: Sequence[Candidate], fidelity: Fidelity
    ) -> Iterator[tuple[int, Evaluation]]:
        """Position and evaluation of each candidate, in the order in which they finish.

        Raises:
            WorkerError: Ray lost the workers for good.
        """
        import ray

        waiting = list(enumerate(candidates))[::-1]
        running: dict[Any, tuple[int, Any]] = {}
        idle = list(self._actors)
        while waiting or running:
            while waiting and idle:
                position, candidate = waiting.pop()
                actor = idle.pop()
                running[actor.evaluate.remote([self._place], candidate, fidelity)] = position, actor
            [done], _ = ray.wait(list(running), num_returns=1)
            position, actor = running.pop(done)
            idle.append(actor)
            try:
                evaluation: Evaluation = ray.get(done)
            except ray.exceptions.RayError as error:
                raise unwrapped(error) from error
            yield position, evaluation

    def close(self) -> None:
        """End the actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
