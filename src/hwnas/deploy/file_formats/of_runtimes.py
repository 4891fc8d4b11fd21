"""File formats of runtimes that convert ONNX files before they run them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hwnas.deploy.file_formats.file_format import FileFormat, SourceNetwork
from hwnas.deploy.runtimes.registry import RUNTIMES
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.targets.target import Device, Target
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "RuntimeFormat"]


@dataclass(frozen=True)
class RuntimeFormat:
    """Format of the files that a runtime makes of ONNX files.

    Attributes:
        runtime: Name of the runtime.
        suffix: Ending of the file's name.
        takes_pixels: Whether files take pixels.
        number_format: Number format of the ONNX file to convert.
        is_program: Whether files are programs.
    """

    runtime: str
    suffix: str
    takes_pixels: bool = False
    number_format: str = "fp32"
    is_program: bool = False

    @property
    def packages(self) -> tuple[str, ...]:
        """Python packages that convert."""
        return RUNTIMES[self.runtime].packages

    def unavailable(self) -> str | None:
        """Return why files cannot be converted here and what to install, or None if they can."""
        return RUNTIMES[self.runtime].unavailable()

    def convert(self, network: SourceNetwork, to: Path) -> Mapping[str, int]:
        """See `FileFormat.convert`."""
        with tempfile.TemporaryDirectory() as folder:
            target = self._target(network.batch)
            made = RUNTIMES[self.runtime].prepare(network.model, target, Path(folder))
            shutil.copyfile(made, to)
        return {}

    def cannot_run(self) -> str | None:
        """Return None: what converts can also run."""
        return None

    def load(self, file: Path, batch: int) -> Session:
        """See `FileFormat.load`."""
        return RUNTIMES[self.runtime].load(file, self._target(batch))

    def _target(self, batch: int) -> Target:
        return Target(Device.here(self.runtime, batch, 1), self.number_format)


def _plugin(
    name: str, runtime: str, summary: str, number_format: str = "fp32"
) -> Plugin[FileFormat]:
    suffix = ".".join(reversed(name.split("-")))  # .int8.tflite for tflite-int8
    format = RuntimeFormat(runtime, f".{suffix}", number_format=number_format)
    return Plugin("file format", name, format, summary, extra=runtime)


PLUGINS = (
    _plugin("mnn", "mnn", "MNN, for phones and small computers"),
    _plugin("mnn-int8", "mnn", "MNN that computes in int8", "int8"),
    _plugin("tflite", "litert", "LiteRT, formerly TensorFlow Lite"),
    _plugin("tflite-int8", "litert", "LiteRT that computes in int8", "int8"),
    _plugin("pte", "executorch", "ExecuTorch with XNNPACK"),
    _plugin("pte-int8", "executorch", "ExecuTorch with XNNPACK that computes in int8", "int8"),
)
