"""MNN files with smaller weights; the computation stays in single precision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hwnas.deploy.file_formats.file_format import FileFormat, SourceNetwork
from hwnas.deploy.onnx.graph import check_graph
from hwnas.deploy.runtimes.mnn import MNN
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.targets.target import Device, Target
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "SmallerMNN"]


@dataclass(frozen=True)
class SmallerMNN:
    """MNN files whose weights are stored in fewer bits.

    Attributes:
        suffix: Ending of the file's name.
        options: Options of MNN's converter.
    """

    suffix: str
    options: tuple[str, ...]
    packages: tuple[str, ...] = ("mnn",)
    takes_pixels: bool = False

    def unavailable(self) -> str | None:
        """Return why files cannot be converted here and what to install, or None if they can."""
        return MNN().unavailable()

    def convert(self, network: SourceNetwork, to: Path) -> None:
        """See `FileFormat.convert`."""
        check_graph(network.model)
        MNN().convert(network.model, to, *self.options)

    def cannot_run(self) -> str | None:
        """Return None: what converts can also run."""
        return None

    def load(self, file: Path, batch: int) -> Session:
        """See `FileFormat.load`."""
        return MNN().load(file, Target(Device.here("mnn", batch, 1)))


_FP16: FileFormat = SmallerMNN(".fp16.mnn", ("--fp16",))
_W8: FileFormat = SmallerMNN(".w8.mnn", ("--weightQuantBits", "8"))
PLUGINS = (
    Plugin("file format", "mnn-fp16", _FP16, "MNN with weights in half precision", extra="mnn"),
    Plugin("file format", "mnn-w8", _W8, "MNN with weights of 8 bits", extra="mnn"),
)
