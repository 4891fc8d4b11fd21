"""PyTorch, operator by operator, on the processor of this machine."""

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
from hwnas.errors import ArtifactError

__all__ = ["PyTorch", "PyTorchSession"]


@dataclass(frozen=True)
class PyTorch:
    """Eager PyTorch.

    Attributes:
        name: As it appears in the names of targets.
        channels_last: Whether images are held as NHWC.
    """

    name: str = "pytorch"
    formats: tuple[str, ...] = FORMATS["pytorch"]
    packages: tuple[str, ...] = ("torch",)
    channels_last: bool = False

    def unavailable(self) -> str | None:
        """Why it cannot be used here and what to install, or None if it can."""
        return missing_package("torch", "torch")

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """The ONNX file itself; `load` makes a module of it."""
        return artifact

    def load(self, executable: Path, target: Target) -> PyTorchSession:
        """Make a module of an ONNX file with one float32 input.

        Raises:
            ArtifactError: The file is missing, damaged, or has an operator that is not known.
            DeviceError: PyTorch is not installed, or the target has more threads than this machine
                has cores.
        """
        check_usable(self.unavailable(), target)
        return PyTorchSession(executable, target.device.threads, self.channels_last)


class PyTorchSession:
    """An ONNX file as a PyTorch module.

    Args:
        path: The file.
        threads: Of one operator; set anew at every run, since PyTorch has one number for all.
        channels_last: Whether images are held as NHWC.
    """

    def __init__(self, path: Path, threads: int, channels_last: bool) -> None:
        import torch

        from hwnas.deploy.onnx_module import OnnxModule

        self._module = OnnxModule.load(path).eval()
        self._path, self._threads = path, threads
        self._channels_last = channels_last
        if channels_last:
            self._module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The input's sizes without the batch."""
        return self._module.input_shape

    @property
    def settings(self) -> Mapping[str, str]:
        """Those settings that change latency."""
        layout = "NHWC" if self._channels_last else "NCHW"
        return {"mode": "eager", "layout": layout, "intra_op_threads": str(self._threads)}

    def run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        """The output (N, ...) of float32 inputs (N, *input_shape).

        Raises:
            ArtifactError: The file cannot compute them.
        """
        import torch

        before = torch.get_num_threads()
        if before != self._threads:
            torch.set_num_threads(self._threads)
        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        try:
            with torch.inference_mode():
                images = torch.from_numpy(batch)
                if images.dim() == 4:
                    images = images.contiguous(memory_format=layout)
                outputs: NDArray[Any] = self._module(images).numpy()
        except Exception as error:  # each operator has its own ways to fail on what it is given
            raise ArtifactError(f"{self._path} cannot be run: {first_line(error)}") from error
        finally:
            if before != self._threads:
                torch.set_num_threads(before)
        return outputs

    def cpu_clock(self) -> float:
        """Seconds; one thread is the caller's own, several are counted with the whole process."""
        return time.thread_time() if self._threads == 1 else time.process_time()
