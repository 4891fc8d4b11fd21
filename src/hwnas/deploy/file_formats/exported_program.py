"""PyTorch's exported programs, which load without the class of the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.file_formats.file_format import FileFormat, SourceNetwork
from hwnas.deploy.runtimes.session import ArraySession, loading
from hwnas.deploy.runtimes.tracing import compiling, traceable
from hwnas.deploy.targets.target import Device, Target
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "ExportedProgramFile"]


@dataclass(frozen=True)
class ExportedProgramFile:
    """Files of `torch.export.save`, for one batch size."""

    suffix: str = ".pt2"
    packages: tuple[str, ...] = ("torch",)
    takes_pixels: bool = False
    number_format: str = "fp32"
    is_program: bool = False

    def unavailable(self) -> str | None:
        """Return None: PyTorch is always there."""
        return None

    def convert(self, network: SourceNetwork, to: Path) -> Mapping[str, int]:
        """See `FileFormat.convert`."""
        import torch

        module, images = traceable(
            network.model, Target(Device("cpu", "onnxruntime", network.batch))
        )
        with compiling(network.model), torch.no_grad():
            torch.export.save(torch.export.export(module, (images,)), to)
        return {}

    def cannot_run(self) -> str | None:
        """Return None: PyTorch is always there."""
        return None

    def load(self, file: Path, batch: int) -> ArraySession:
        """See `FileFormat.load`."""
        import torch

        with loading(file):
            program = torch.export.load(file)
            run = program.module()
            [image] = program.example_inputs[0]

        def compute(images: NDArray[np.float32]) -> NDArray[Any]:
            with torch.no_grad():
                outputs: NDArray[Any] = run(torch.from_numpy(images)).numpy()
            return outputs

        return ArraySession(file, compute, tuple(image.shape[1:]), 1, {}, batch)


_FORMAT: FileFormat = ExportedProgramFile()
PLUGINS = (
    Plugin("file format", "torch", _FORMAT, "PyTorch's exported program (torch.export.load)"),
)
