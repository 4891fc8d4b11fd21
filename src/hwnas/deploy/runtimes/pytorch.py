"""Eager PyTorch on the CPU of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.runtimes.checks import check_usable, missing_package
from hwnas.deploy.runtimes.session import ArraySession
from hwnas.deploy.targets.target import Target

if TYPE_CHECKING:
    from torch import Tensor
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "PyTorch", "tensor_session", "with_threads"]


@dataclass(frozen=True)
class PyTorch:
    """Eager PyTorch.

    Attributes:
        name: Name in the names of targets.
        channels_last: Whether images are held as NHWC.
    """

    name: str = "pytorch"
    formats: tuple[str, ...] = ("fp32",)
    hardware: tuple[str, ...] = ("cpu",)
    packages: tuple[str, ...] = ("torch",)
    channels_last: bool = False

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Return why the runtime cannot be used here and what to install, or None if it can."""
        return missing_package("torch", "torch")

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Return the ONNX file itself; `load` converts it to a module."""
        return artifact

    def load(self, executable: Path, target: Target) -> ArraySession:
        """Convert an ONNX file with one float32 input to a module.

        Raises:
            ArtifactError: The file is missing, damaged, or has an operator that is not supported.
            DeviceError: PyTorch is not installed, or the target has more threads than this machine
                has cores.
        """
        check_usable(self, target)
        import torch

        from hwnas.deploy.onnx.module import OnnxModule

        module = OnnxModule.load(executable).eval()
        if self.channels_last:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        threads, shape = target.device.threads, module.input_shape
        return tensor_session(executable, module, shape, threads, "eager", self.channels_last)


def tensor_session(
    path: Path,
    network: Callable[[Tensor], Tensor],
    input_shape: tuple[int, ...],
    threads: int,
    mode: str,
    channels_last: bool = False,
    batch: int | None = None,
) -> ArraySession:
    """Return a session of a network that takes and returns PyTorch tensors.

    Args:
        path: File that the network was made from.
        network: Network whose batch is that of its inputs.
        input_shape: Shape of the input, without the batch.
        threads: Number of threads of one operator. It is set before each run, because PyTorch has a
            single setting for all.
        mode: Mode in which PyTorch runs the network.
        channels_last: Whether images are held as NHWC.
        batch: Only number of images that the network accepts, if it is fixed.
    """
    import torch

    layout = torch.channels_last if channels_last else torch.contiguous_format

    def compute(inputs: NDArray[np.float32]) -> NDArray[Any]:
        with torch.inference_mode(), with_threads(threads):
            images = torch.from_numpy(inputs)
            if images.dim() == 4:
                images = images.contiguous(memory_format=layout)
            outputs: NDArray[Any] = network(images).numpy()
        return outputs

    settings = {"mode": mode, "layout": "NHWC" if channels_last else "NCHW"}
    settings["intra_op_threads"] = str(threads)
    return ArraySession(path, compute, input_shape, threads, settings, batch)


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Set PyTorch's number of threads of one operator within the context."""
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


PLUGINS = (
    Plugin("runtime", "pytorch", PyTorch(), "PyTorch on the processor"),
    Plugin(
        "runtime",
        "pytorch_nhwc",
        PyTorch("pytorch_nhwc", channels_last=True),
        "PyTorch with images as NHWC",
    ),
)
