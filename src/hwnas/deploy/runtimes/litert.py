"""LiteRT, formerly TensorFlow Lite, on the CPU of this machine."""

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
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "LiteRT"]


@dataclass(frozen=True)
class LiteRT:
    """LiteRT programs for one batch size, with XNNPACK's kernels."""

    name: str = "litert"
    formats: tuple[str, ...] = ("fp32", "int8")
    hardware: tuple[str, ...] = ("cpu",)
    packages: tuple[str, ...] = ("ai-edge-litert", "litert-torch")

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Return why the runtime cannot be used here and what to install, or None if it can."""
        install = "'hwnas[litert]' in a separate environment"
        return missing_package("ai_edge_litert", install) or missing_package(
            "litert_torch", install
        )

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Convert the file to a LiteRT program in ``folder``.

        Raises:
            ArtifactError: The file is missing, damaged, or cannot be converted.
        """
        import litert_torch

        given = in_format(artifact, target.format, target.device.batch, folder)
        module, images = traceable(given, target, folded=False)
        converted = folder / f"{artifact.stem}.tflite"
        with compiling(artifact):
            litert_torch.convert(module, (images,)).export(str(converted))
        return converted

    def load(self, executable: Path, target: Target) -> ArraySession:
        """Load a program that `prepare` made.

        Raises:
            ArtifactError: The program is missing or damaged.
            DeviceError: LiteRT is not installed, or the target has more threads than this machine
                has cores.
        """
        check_usable(self, target)
        from ai_edge_litert.interpreter import Interpreter

        threads = target.device.threads
        with loading(executable):
            model = executable.read_bytes()
            interpreter = Interpreter(model_content=model, num_threads=threads)
            interpreter.allocate_tensors()
            [image] = interpreter.get_input_details()
            output, *_ = interpreter.get_output_details()
            batch, *shape = map(int, image["shape"])

        def compute(images: NDArray[np.float32]) -> NDArray[Any]:
            interpreter.set_tensor(image["index"], images)
            interpreter.invoke()
            outputs: NDArray[Any] = interpreter.get_tensor(output["index"])
            return outputs

        settings = {"delegate": "XNNPACK", "num_threads": str(threads)}
        return ArraySession(executable, compute, tuple(shape), threads, settings, batch)


PLUGINS = (
    Plugin(
        "runtime",
        "litert",
        LiteRT(),
        "LiteRT, formerly TensorFlow Lite, on the processor",
        extra="litert",
    ),
)
