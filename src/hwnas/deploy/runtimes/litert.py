"""LiteRT, the former TensorFlow Lite, on the processor of this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.device import FORMATS, Target
from hwnas.deploy.first_line import first_line
from hwnas.deploy.runtimes.checks import check_usable, missing_package
from hwnas.deploy.runtimes.tracing import compiling, in_batches, traceable
from hwnas.errors import ArtifactError

__all__ = ["LiteRT", "LiteRTSession"]


@dataclass(frozen=True)
class LiteRT:
    """LiteRT's programs for one batch size, with XNNPACK's kernels."""

    name: str = "litert"
    formats: tuple[str, ...] = FORMATS["litert"]
    packages: tuple[str, ...] = ("ai-edge-litert", "litert-torch")

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Why it cannot be used here and what to install, or None if it can."""
        install = "'hwnas[litert]' in an environment of its own"
        return missing_package("ai_edge_litert", install) or missing_package(
            "litert_torch", install
        )

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """A program of LiteRT's in ``folder``.

        Raises:
            ArtifactError: The file is missing, damaged, or has what cannot be converted.
        """
        import litert_torch

        module, images = traceable(artifact, target)
        converted = folder / f"{artifact.stem}.tflite"
        with compiling(artifact):
            litert_torch.convert(module, (images,)).export(str(converted))
        return converted

    def load(self, executable: Path, target: Target) -> LiteRTSession:
        """Load a program that `prepare` made.

        Raises:
            ArtifactError: The program is missing or damaged.
            DeviceError: LiteRT is not installed, or the target has too many threads.
        """
        check_usable(self, target)
        return LiteRTSession(executable, target.device.threads)


class LiteRTSession:
    """A program of LiteRT's, loaded.

    Args:
        path: The program.
        threads: Of one operator.
    """

    def __init__(self, path: Path, threads: int) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self._path, self._threads = path, threads
        try:
            self._interpreter = Interpreter(model_content=path.read_bytes(), num_threads=threads)
            self._interpreter.allocate_tensors()
        except Exception as error:  # those of the library, which is C++, have no other base
            raise ArtifactError(f"{path} cannot be loaded: {first_line(error)}") from error
        [images], [outputs, *_] = (
            self._interpreter.get_input_details(),
            self._interpreter.get_output_details(),
        )
        self._images, self._outputs = images["index"], outputs["index"]
        self._batch, *sizes = (int(size) for size in images["shape"])
        self.input_shape = tuple(sizes)

    @property
    def settings(self) -> Mapping[str, str]:
        """Those settings that change latency."""
        return {"delegate": "XNNPACK", "num_threads": str(self._threads)}

    def run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        """The first output (N, ...) of float32 inputs (N, *input_shape).

        Raises:
            ArtifactError: The program cannot compute them.
        """
        return in_batches(self._run, batch, self._batch)

    def _run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        try:
            self._interpreter.set_tensor(self._images, batch)
            self._interpreter.invoke()
        except (ValueError, RuntimeError) as error:
            raise ArtifactError(f"{self._path} cannot be run: {first_line(error)}") from error
        outputs: NDArray[Any] = self._interpreter.get_tensor(self._outputs)
        return outputs

    def cpu_clock(self) -> float:
        """Seconds; one thread is the caller's own, several are counted with the whole process."""
        return time.thread_time() if self._threads == 1 else time.process_time()
