"""The session of every runtime for which a loaded network is just a function of arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.first_line import first_line
from hwnas.errors import ArtifactError

__all__ = ["ArraySession", "cpu_seconds", "in_batches", "loading"]


class ArraySession:
    """A network that computes arrays from arrays.

    Args:
        path: The file that it was made of.
        compute: Gives a new array (N, ...) for contiguous float32 inputs (N, *input_shape).
        input_shape: Of the input, without the batch.
        threads: Of one operator.
        settings: Of the runtime, those that change latency.
        batch: The only N that ``compute`` takes, if there is one.
    """

    def __init__(
        self,
        path: Path,
        compute: Callable[[NDArray[np.float32]], NDArray[Any]],
        input_shape: tuple[int, ...],
        threads: int,
        settings: Mapping[str, str],
        batch: int | None = None,
    ) -> None:
        self._path, self._compute, self._threads, self._batch = path, compute, threads, batch
        self.input_shape, self.settings = input_shape, settings

    def run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        """The first output (N, ...) of float32 inputs (N, *input_shape).

        Raises:
            ArtifactError: The file cannot compute them.
        """
        try:
            return in_batches(self._compute, batch, self._batch or len(batch))
        except Exception as error:  # each runtime, and each operator, fails in ways of its own
            raise ArtifactError(
                f"{self._path} cannot be run on inputs of shape {batch.shape}: {first_line(error)}"
            ) from error

    def cpu_clock(self) -> float:
        """Seconds of CPU time that the threads which compute have used so far."""
        return cpu_seconds(self._threads)


def cpu_seconds(threads: int) -> float:
    """Seconds; one thread is the caller's own, several are counted with the whole process."""
    return time.thread_time() if threads == 1 else time.process_time()


def in_batches(
    run: Callable[[NDArray[np.float32]], NDArray[Any]], inputs: NDArray[np.float32], size: int
) -> NDArray[Any]:
    """Outputs (N, ...) of inputs (N, ...), from what takes batches of one size only.

    Args:
        run: Gives a new array for a batch of ``size``.
        inputs: Any number of them; the last batch is filled up with zeros.
        size: Of a batch.
    """
    if len(inputs) == size:
        return run(np.ascontiguousarray(inputs))
    missing = -len(inputs) % size
    padded = np.concatenate([inputs, np.zeros((missing, *inputs.shape[1:]), inputs.dtype)])
    outputs = [run(padded[i : i + size]) for i in range(0, len(padded), size)]
    return np.concatenate(outputs)[: len(inputs)]


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """What a library raises about a file, as one error that names it."""
    try:
        yield
    except Exception as error:  # those of libraries in C++ have no other base
        raise ArtifactError(f"{path} cannot be loaded: {first_line(error)}") from error
