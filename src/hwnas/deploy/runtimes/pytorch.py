"""PyTorch, operator by operator, on the processor of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.device import FORMATS, Target
from hwnas.deploy.first_line import first_line
from hwnas.deploy.runtimes.checks import check_usable, missing_package
from hwnas.deploy.runtimes.tracing import in_batches
from hwnas.errors import ArtifactError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PyTorch", "PyTorchSession", "with_threads"]


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

    def unavailable(self, hardware: str = "cpu") -> str | None:
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
        check_usable(self, target)
        import torch

        from hwnas.deploy.onnx_module import OnnxModule

        module = OnnxModule.load(executable).eval()
        if self.channels_last:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        threads, shape = target.device.threads, module.input_shape
        return PyTorchSession(executable, module, shape, threads, "eager", self.channels_last)


class PyTorchSession:
    """A network that takes and gives PyTorch's tensors.

    Args:
        path: The file that it was made of.
        network: The network; its batch is that of its inputs.
        input_shape: Of the input, without the batch.
        threads: Of one operator; set anew at every run, since PyTorch has one number for all.
        mode: How PyTorch runs it.
        channels_last: Whether images are held as NHWC.
        batch: The only number of images that it takes, if there is one.
    """

    def __init__(
        self,
        path: Path,
        network: Callable[[Tensor], Tensor],
        input_shape: tuple[int, ...],
        threads: int,
        mode: str,
        channels_last: bool = False,
        batch: int | None = None,
    ) -> None:
        self._path, self._network, self._threads = path, network, threads
        self._batch = batch
        self.input_shape = input_shape
        layout = "NHWC" if channels_last else "NCHW"
        self.settings = {"mode": mode, "layout": layout, "intra_op_threads": str(threads)}
        self._channels_last = channels_last

    def run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        """The output (N, ...) of float32 inputs (N, *input_shape).

        Raises:
            ArtifactError: The file cannot compute them.
        """
        return in_batches(self._run, batch, self._batch or len(batch))

    def _run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        import torch

        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        try:
            with torch.inference_mode(), with_threads(self._threads):
                images = torch.from_numpy(batch)
                if images.dim() == 4:
                    images = images.contiguous(memory_format=layout)
                outputs: NDArray[Any] = self._network(images).numpy()
        except Exception as error:  # each operator has its own ways to fail on what it is given
            raise ArtifactError(f"{self._path} cannot be run: {first_line(error)}") from error
        return outputs

    def cpu_clock(self) -> float:
        """Seconds; one thread is the caller's own, several are counted with the whole process."""
        return time.thread_time() if self._threads == 1 else time.process_time()


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """PyTorch with so many threads for one operator."""
    import torch

    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
