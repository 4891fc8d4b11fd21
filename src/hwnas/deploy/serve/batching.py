"""Queue that batches requests to a network which arrive at the same time."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.serve.limits import RequestRefusal
from hwnas.errors import ArtifactError

__all__ = ["Batcher", "Drop"]

Run = Callable[[NDArray[np.float32]], NDArray[Any]]
"""Function that returns the outputs (N, ...) of inputs (N, ...)."""

Drop = Literal["late", "gone"]
"""Reason why a request is not computed: its deadline has passed, or its client has disconnected."""


@dataclass(frozen=True, eq=False)
class _Waiting:
    inputs: NDArray[np.float32]
    deadline: float
    is_connected: Callable[[], bool]
    answer: Future[NDArray[Any]] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)

    def reason_to_drop(self) -> Drop | None:
        if self.answer.cancelled() or time.monotonic() > self.deadline:
            return "late"
        return None if self.is_connected() else "gone"


class Batcher:
    """Queue of requests to a network, with the one thread that runs the network.

    A batch runs as soon as it is full, or when its oldest request has waited long enough. The next
    batch gathers during the run, so that under load the network never waits. A request is never
    split across batches with others; one that is larger than a batch is run in parts. Requests that
    no client waits for any more are not run.

    Args:
        run: Function that runs the network.
        max_batch: Largest number of images in one run.
        max_wait_s: Longest time that a request waits for others to join its batch, in seconds.
        max_waiting: Largest number of images in the queue.
        observe: Function called with the size of each batch, and the seconds that it took.
        dropped: Function called with the reason for each request that is not run.
    """

    def __init__(
        self,
        run: Run,
        max_batch: int,
        max_wait_s: float,
        max_waiting: int,
        observe: Callable[[int, float], object] = lambda images, seconds: None,
        dropped: Callable[[Drop], object] = lambda reason: None,
    ) -> None:
        self._run, self._observe, self._dropped = run, observe, dropped
        self._max_batch, self._max_wait_s, self._max_waiting = max_batch, max_wait_s, max_waiting
        self._queue: deque[_Waiting] = deque()
        self._images = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="network", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of images in the queue."""
        return self._images

    def check(self, images: int) -> None:
        """Raise `RequestRefusal` if a request has more images than the queue can ever hold.

        Raises:
            Refusal: 413 for too many images.
        """
        if images > self._max_waiting:
            raise RequestRefusal(
                413, f"the request has {images} images; at most {self._max_waiting} fit"
            )

    def submit(
        self,
        inputs: NDArray[np.float32],
        deadline: float = math.inf,
        is_connected: Callable[[], bool] = lambda: True,
    ) -> Future[NDArray[Any]]:
        """Put images (n, ...) into the queue, and return a future of their outputs (n, ...).

        Args:
            inputs: Inputs of the network.
            deadline: Time on the monotonic clock after which the images are not run any more.
            is_connected: Function that returns whether the client still waits for the outputs.

        Raises:
            Refusal: 503 if the queue is full or closed, 413 for more images than it can ever hold.
        """
        self.check(len(inputs))
        with self._changed:
            if self._closed:
                raise RequestRefusal(
                    503, "the server is shutting down; use another one", Retry_After="5"
                )
            if self._images + len(inputs) > self._max_waiting:
                self._drop_unwanted()
            if self._images + len(inputs) > self._max_waiting:
                raise RequestRefusal(
                    503, f"{self._images} images wait already; try again", Retry_After="1"
                )
            self._queue.append(waiting := _Waiting(inputs, deadline, is_connected))
            self._images += len(inputs)
            if len(self._queue) == 1 or self._images >= self._max_batch:
                self._changed.notify()
        waiting.answer.add_done_callback(self._forget)
        return waiting.answer

    def close(self) -> None:
        """Accept no more requests, answer the waiting ones, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            self._answer(batch)
            del batch  # free its memory while waiting for the next one

    def _answer(self, batch: list[_Waiting]) -> None:
        try:
            outputs = self._outputs(batch)
        except Exception as error:  # every waiting request has to get it, whatever it is
            for each in batch:
                each.answer.set_exception(error)
            return
        ends = np.cumsum([len(each.inputs) for each in batch])
        for each, part in zip(batch, np.split(outputs, ends[:-1]), strict=True):
            each.answer.set_result(part)

    def _outputs(self, batch: list[_Waiting]) -> NDArray[Any]:
        inputs = np.concatenate([each.inputs for each in batch])
        parts = []
        for start in range(0, len(inputs), self._max_batch):
            if start and (reason := batch[0].reason_to_drop()):  # the batch is one request
                raise self._drop(reason)
            part = inputs[start : start + self._max_batch]
            began = time.perf_counter()
            parts.append(self._run(part))
            self._observe(len(part), time.perf_counter() - began)
            if len(parts[-1]) != len(part):
                raise ArtifactError(f"{len(part)} images gave {len(parts[-1])} outputs")
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _next_batch(self) -> list[_Waiting]:
        """Return the requests to run next; none once the queue is closed and empty."""
        with self._changed:
            while True:
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
                if taken := self._taken():
                    return taken

    def _taken(self) -> list[_Waiting]:
        """Take the oldest requests that are still wanted, as many as fit into a batch."""
        taken: list[_Waiting] = []
        images = 0
        while self._queue:
            following = self._queue[0]
            if taken and images + len(following.inputs) > self._max_batch:
                break
            self._queue.popleft()
            self._images -= len(following.inputs)
            reason = following.reason_to_drop()
            if reason is None and following.answer.set_running_or_notify_cancel():
                taken.append(following)
                images += len(following.inputs)
            else:
                self._refuse(following, reason or "late")
        return taken

    def _forget(self, answer: Future[NDArray[Any]]) -> None:
        """Free the inputs of a cancelled request, because its memory is no longer reserved."""
        if not answer.cancelled():
            return
        with self._changed:
            for each in self._queue:
                if each.answer is answer:
                    self._queue.remove(each)
                    self._images -= len(each.inputs)
                    self._dropped("late")
                    return

    def _drop_unwanted(self) -> None:
        """Remove requests that no client waits for from a full queue."""
        for each in (queue := [*self._queue]):
            if reason := each.reason_to_drop():
                self._images -= len(each.inputs)
                self._refuse(each, reason)
        self._queue = deque(each for each in queue if not each.answer.done())

    def _refuse(self, waiting: _Waiting, reason: Drop) -> None:
        refusal = self._drop(reason)
        if not waiting.answer.cancelled():
            with contextlib.suppress(InvalidStateError):  # it was cancelled in the meantime
                waiting.answer.set_exception(refusal)

    def _drop(self, reason: Drop) -> RequestRefusal:
        self._dropped(reason)
        if reason == "late":
            return RequestRefusal(504, "the network did not run this request in time; try again")
        return RequestRefusal(499, "the client has disconnected")
