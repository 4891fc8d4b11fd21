"""Core ML, for Apple's devices."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.file_formats.file_format import FileFormat, SourceNetwork
from hwnas.deploy.runtimes.checks import missing_package
from hwnas.deploy.runtimes.session import ArraySession, loading
from hwnas.deploy.runtimes.tracing import compiling, traceable
from hwnas.deploy.targets.target import Device, Target
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "CoreML"]

_INPUT, _OUTPUT = "images", "outputs"


@dataclass(frozen=True)
class CoreML:
    """ML programs of Core ML in single precision, for iOS 16 and macOS 13 or later.

    A file is a folder. It is converted on any system, and checked by the converter's own loading of
    its specification; only macOS runs it.
    """

    suffix: str = ".mlpackage"
    packages: tuple[str, ...] = ("coremltools",)
    takes_pixels: bool = False
    number_format: str = "fp32"
    is_program: bool = False

    def unavailable(self) -> str | None:
        """Return why files cannot be converted here and what to install, or None if they can."""
        return missing_package("coremltools", "'hwnas[coreml]'")

    def convert(self, network: SourceNetwork, to: Path) -> Mapping[str, int]:
        """See `FileFormat.convert`."""
        import torch

        module, images = traceable(
            network.model, Target(Device("cpu", "onnxruntime", network.batch))
        )
        with compiling(network.model), _silence(), torch.no_grad():
            import coremltools

            traced = torch.jit.trace(module, images)  # type: ignore[no-untyped-call]
            converted = coremltools.convert(
                traced,
                convert_to="mlprogram",
                inputs=[coremltools.TensorType(_INPUT, images.shape)],
                outputs=[coremltools.TensorType(_OUTPUT)],
                minimum_deployment_target=coremltools.target.iOS16,
                compute_precision=coremltools.precision.FLOAT32,
            )
            if to.exists():
                shutil.rmtree(to)
            converted.save(str(to))
            coremltools.models.MLModel(str(to), skip_model_load=True)
        return {}

    def cannot_run(self) -> str | None:
        """Return why files cannot be run here, or None if they can."""
        return None if sys.platform == "darwin" else "Core ML runs on Apple's systems only"

    def load(self, file: Path, batch: int) -> ArraySession:
        """See `FileFormat.load`."""
        with loading(file), _silence():
            import coremltools

            model = coremltools.models.MLModel(str(file))
            [image] = model.get_spec().description.input
            shape = tuple(image.type.multiArrayType.shape)[1:]

        def compute(images: NDArray[np.float32]) -> NDArray[Any]:
            return np.array(model.predict({_INPUT: images})[_OUTPUT])

        return ArraySession(file, compute, shape, 1, {}, batch)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppress the progress bars, and the warnings about what only Apple's systems have."""
    logger = logging.getLogger("coremltools")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)


_FORMAT: FileFormat = CoreML()
PLUGINS = (
    Plugin("file format", "coreml", _FORMAT, "Core ML, for Apple's devices", extra="coreml"),
)
