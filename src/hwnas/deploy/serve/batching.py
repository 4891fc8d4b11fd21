"""Requests that come at the same time run through the network together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.serve.limits import Refusal
from hwnas.errors import ArtifactError

__all__ = ["Batcher"]

Run = Callable[[NDArray[np.float32]], NDArray[Any]]
"""Outputs (N, ...) of inputs (N, ...)."""


@dataclass(frozen=True)
class _Waiting:
    inputs: NDArray[np.float32]
    answer: Future[NDArray[Any]] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """A queue in front of a network, and the one thread that runs it.

    A batch is run as soon as it is full, or when its oldest request has waited long enough. While
    one runs the next one gathers, so that under load the network never waits. A request is never
    split over batches with others; one that is larger than a batch is run piece by piece.

    Args:
        run: The network.
        max_batch: Images that are run at once.
        max_wait_s: A request waits at most so long for others to join it.
        max_waiting: Images in the queue.
        observe: Called with the size of each batch, and the seconds that it took.
    """

    def __init__(
        self,
        run: Run,
        max_batch: int,
        max_wait_s: float,
        max_waiting: int,
        observe: Callable[[int, float], object] = lambda images, seconds: None,
    ) -> None:
        self._run, self._observe = run, observe
        self._max_batch, self._max_wait_s, self._max_waiting = max_batch, max_wait_s, max_waiting
        self._queue: deque[_Waiting] = deque()
        self._images = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="network", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Images in the queue."""
        return self._images

    def submit(self, inputs: NDArray[np.float32]) -> Future[NDArray[Any]]:
        """Put images (n, ...) into the queue; their outputs (n, ...) arrive later.

        Raises:
            Refusal: 503 where the queue is full or closed, 413 for more images than it ever takes.
        """
        if len(inputs) > self._max_waiting:
            raise Refusal(413, f"{len(inputs)} images at once; at most {self._max_waiting} fit")
        with self._changed:
            if self._closed:
                raise Refusal(503, "the server is ending; ask another one", Retry_After="5")
            if self._images + len(inputs) > self._max_waiting:
                raise Refusal(
                    503, f"{self._images} images wait already; try again", Retry_After="1"
                )
            self._queue.append(waiting := _Waiting(inputs))
            self._images += len(inputs)
            if len(self._queue) == 1 or self._images >= self._max_batch:
                self._changed.notify()
        return waiting.answer

    def close(self) -> None:
        """Take no more, answer those who wait, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                outputs = self._outputs(np.concatenate([each.inputs for each in batch]))
            except Exception as error:  # whatever it is, those who wait have to be told
                for each in batch:
                    each.answer.set_exception(error)
                continue
            ends = np.cumsum([len(each.inputs) for each in batch])
            for each, part in zip(batch, np.split(outputs, ends[:-1]), strict=True):
                each.answer.set_result(part)

    def _outputs(self, inputs: NDArray[np.float32]) -> NDArray[Any]:
        parts = []
        for start in range(0, len(inputs), self._max_batch):
            part = inputs[start : start + self._max_batch]
            began = time.perf_counter()
            parts.append(self._run(part))
            self._observe(len(part), time.perf_counter() - began)
            if len(parts[-1]) != len(part):
                raise ArtifactError(f"{len(part)} images gave {len(parts[-1])} outputs")
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _next_batch(self) -> list[_Waiting]:
        """The requests to be run next; none once the queue is closed and empty."""
        with self._changed:
            while not self._queue:
                if self._closed:
                    return []
                self._changed.wait()
            end = self._queue[0].since + self._max_wait_s
            while self._images < self._max_batch and not self._closed:
                left = end - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return self._taken()

    def _taken(self) -> list[_Waiting]:
        taken = [self._queue.popleft()]
        images = len(taken[0].inputs)
        while self._queue and images + len(self._queue[0].inputs) <= self._max_batch:
            taken.append(self._queue.popleft())
            images += len(taken[-1].inputs)
        self._images -= images
        return taken
