"""ExecuTorch, PyTorch's engine for phones, with XNNPACK on the CPU of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.runtimes.checks import check_usable, missing_package
from hwnas.deploy.runtimes.onnx import in_format
from hwnas.deploy.runtimes.session import ArraySession, loading
from hwnas.deploy.runtimes.tracing import compiling, traceable
from hwnas.deploy.targets.target import Target
from hwnas.errors import DeviceError
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "ExecuTorch"]

_THREADS_OF_PROCESS: list[int] = []


@dataclass(frozen=True)
class ExecuTorch:
    """ExecuTorch programs for one batch size, lowered to XNNPACK's kernels."""

    name: str = "executorch"
    formats: tuple[str, ...] = ("fp32", "int8")
    hardware: tuple[str, ...] = ("cpu",)
    packages: tuple[str, ...] = ("executorch", "torch")

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Return why the runtime cannot be used here and what to install, or None if it can."""
        return missing_package("executorch", "'hwnas[executorch]' in a separate environment")

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Lower the file to an ExecuTorch program in ``folder``, which takes half a minute.

        Raises:
            ArtifactError: The file is missing, damaged, or cannot be lowered.
        """
        import torch
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        from hwnas.deploy.onnx.integer_program import EXECUTORCH

        given = in_format(artifact, target.format, target.device.batch, folder)
        module, images = traceable(given, target, EXECUTORCH)
        with compiling(artifact), torch.no_grad():
            program = torch.export.export(module, (images,))
            lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
            converted = folder / f"{artifact.stem}.pte"
            converted.write_bytes(lowered.to_executorch().buffer)
        return converted

    def load(self, executable: Path, target: Target) -> ArraySession:
        """Load a program that `prepare` made.

        Raises:
            ArtifactError: The program is missing or damaged.
            DeviceError: ExecuTorch is not installed, or the target has more threads than this
                machine has cores, or another number of threads than this process has used.
        """
        check_usable(self, target)
        import torch
        from executorch.runtime import Runtime as Programs

        threads = target.device.threads
        _use_threads(threads)
        with loading(executable):
            program = Programs.get().load_program(executable.read_bytes())
            method = program.load_method("forward")
            batch, *shape = method.metadata.input_tensor_meta(0).sizes()

        def compute(images: NDArray[np.float32], _alive: Any = program) -> NDArray[Any]:
            [outputs] = method.execute((torch.from_numpy(images),))
            return np.array(outputs)  # copied, since the next run overwrites the outputs

        settings = {"backend": "XNNPACK", "threads": str(threads)}
        return ArraySession(executable, compute, tuple(shape), threads, settings, batch)


def _use_threads(threads: int) -> None:
    """Set the number of threads of the pool that all programs of this process share and keep.

    Raises:
        DeviceError: This process has run programs with another number of threads.
    """
    from executorch.extension.pybindings import portable_lib

    if not _THREADS_OF_PROCESS:
        portable_lib._unsafe_reset_threadpool(threads)
        _THREADS_OF_PROCESS.append(threads)
    if [threads] != _THREADS_OF_PROCESS:
        raise DeviceError(
            f"ExecuTorch runs with {_THREADS_OF_PROCESS[0]} threads in this process and "
            f"cannot change to {threads}; use targets with the same number of threads"
        )


PLUGINS = (
    Plugin(
        "runtime",
        "executorch",
        ExecuTorch(),
        "ExecuTorch with XNNPACK on the processor",
        extra="executorch",
    ),
)
