"""ExecuTorch with XNNPACK, PyTorch's engine for phones, on the processor of this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.device import FORMATS, Target
from hwnas.deploy.first_line import first_line
from hwnas.deploy.runtimes.checks import check_usable, missing_package
from hwnas.deploy.runtimes.tracing import compiling, in_batches, traceable
from hwnas.errors import ArtifactError, DeviceError

__all__ = ["ExecuTorch", "ExecuTorchSession"]


@dataclass(frozen=True)
class ExecuTorch:
    """ExecuTorch's programs for one batch size, lowered to XNNPACK's kernels."""

    name: str = "executorch"
    formats: tuple[str, ...] = FORMATS["executorch"]
    packages: tuple[str, ...] = ("executorch", "torch")

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Why it cannot be used here and what to install, or None if it can."""
        return missing_package("executorch", "'hwnas[executorch]' in an environment of its own")

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """A program of ExecuTorch's in ``folder``; to lower it takes half a minute.

        Raises:
            ArtifactError: The file is missing, damaged, or has what cannot be lowered.
        """
        import torch
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        module, images = traceable(artifact, target)
        with compiling(artifact), torch.no_grad():
            program = torch.export.export(module, (images,))
            lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
            converted = folder / f"{artifact.stem}.pte"
            converted.write_bytes(lowered.to_executorch().buffer)
        return converted

    def load(self, executable: Path, target: Target) -> ExecuTorchSession:
        """Load a program that `prepare` made.

        Raises:
            ArtifactError: The program is missing or damaged.
            DeviceError: ExecuTorch is not installed, or the target has too many threads.
        """
        check_usable(self, target)
        return ExecuTorchSession(executable, target.device.threads)


class ExecuTorchSession:
    """A program of ExecuTorch's, loaded.

    Args:
        path: The program.
        threads: Of one operator.

    Raises:
        DeviceError: This process has run programs with another number of threads. ExecuTorch has
            one pool for all, which programs keep hold of.
    """

    _threads_of_process: ClassVar[int | None] = None

    def __init__(self, path: Path, threads: int) -> None:
        from executorch.runtime import Runtime

        self._path, self._threads = path, threads
        self._set_threads(threads)
        try:
            self._program = Runtime.get().load_program(path.read_bytes())  # a method needs it alive
            method = self._program.load_method("forward")
            sizes = method.metadata.input_tensor_meta(0).sizes()
        except Exception as error:  # those of the library, which is C++, have no other base
            raise ArtifactError(f"{path} cannot be loaded: {first_line(error)}") from error
        self._method, self._batch, self.input_shape = method, sizes[0], tuple(sizes[1:])

    @classmethod
    def _set_threads(cls, threads: int) -> None:
        from executorch.extension.pybindings import portable_lib

        if cls._threads_of_process is None:
            portable_lib._unsafe_reset_threadpool(threads)
            cls._threads_of_process = threads
        if cls._threads_of_process != threads:
            raise DeviceError(
                f"ExecuTorch runs with {cls._threads_of_process} threads in this process and "
                f"cannot change to {threads}; use targets of one number of threads at a time"
            )

    @property
    def settings(self) -> Mapping[str, str]:
        """Those settings that change latency."""
        return {"backend": "XNNPACK", "threads": str(self._threads)}

    def run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        """The first output (N, ...) of float32 inputs (N, *input_shape).

        Raises:
            ArtifactError: The program cannot compute them.
        """
        return in_batches(self._run, batch, self._batch)

    def _run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        import torch

        try:
            [outputs] = self._method.execute((torch.from_numpy(batch),))
        except Exception as error:  # those of the library, which is C++, have no other base
            raise ArtifactError(f"{self._path} cannot be run: {first_line(error)}") from error
        return np.array(outputs)  # the program writes the next outputs to the same place

    def cpu_clock(self) -> float:
        """Seconds; one thread is the caller's own, several are counted with the whole process."""
        return time.thread_time() if self._threads == 1 else time.process_time()
