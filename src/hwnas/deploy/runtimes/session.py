"""Session of runtimes whose loaded networks are functions of arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.error_line import first_line
from hwnas.errors import ArtifactError

__all__ = ["ArraySession", "cpu_seconds", "in_batches", "loading"]


class ArraySession:
    """Session of a network that computes arrays from arrays.

    Args:
        path: File that the network was made from.
        compute: Function that returns a new array (N, ...) for contiguous float32 inputs (N,
            *input_shape).
        input_shape: Shape of the input, without the batch.
        threads: Number of threads of one operator.
        settings: Settings of the runtime that affect latency.
        batch: Only N that ``compute`` accepts, if it is fixed.
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
        """Return the first output (N, ...) for float32 inputs (N, *input_shape).

        Raises:
            ArtifactError: The file cannot compute these inputs.
        """
        try:
            return in_batches(self._compute, batch, self._batch or len(batch))
        except Exception as error:  # runtimes and operators share no error class
            raise ArtifactError(
                f"{self._path} cannot be run on inputs of shape {batch.shape}: {first_line(error)}"
            ) from error

    def cpu_clock(self) -> float:
        """Return the CPU time in seconds that the computing threads have used so far."""
        return cpu_seconds(self._threads)


def cpu_seconds(threads: int) -> float:
    """Return the CPU seconds of the calling thread, or of the process if there are more threads."""
    return time.thread_time() if threads == 1 else time.process_time()


def in_batches(
    run: Callable[[NDArray[np.float32]], NDArray[Any]], inputs: NDArray[np.float32], size: int
) -> NDArray[Any]:
    """Return outputs (N, ...) of inputs (N, ...), from a function of batches of one size only.

    Args:
        run: Function that returns a new array for a batch of ``size``.
        inputs: Any number of inputs; the last batch is padded with zeros.
        size: Size of a batch.
    """
    if len(inputs) == size:
        return run(np.ascontiguousarray(inputs))
    missing = -len(inputs) % size
    padded = np.concatenate([inputs, np.zeros((missing, *inputs.shape[1:]), inputs.dtype)])
    outputs = [run(padded[i : i + size]) for i in range(0, len(padded), size)]
    return np.concatenate(outputs)[: len(inputs)]


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """Convert any exception of a library to one error that names the file."""
    try:
        yield
    except Exception as error:  # errors of C++ libraries have no other common base class
        raise ArtifactError(f"{path} cannot be loaded: {first_line(error)}") from error
