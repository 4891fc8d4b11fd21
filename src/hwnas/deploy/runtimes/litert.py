"""LiteRT, formerly TensorFlow Lite, on the CPU of this machine."""

from __future__ import annotations

from collections.abc import Mapping
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

        from hwnas.deploy.onnx.integer_program import LITERT

        given = in_format(artifact, target.format, target.device.batch, folder)
        module, images = traceable(given, target, LITERT)
        converted = folder / f"{artifact.stem}.tflite"
        with compiling(artifact):
            how = _static() if target.format == "int8" else None
            litert_torch.convert(module, (images,), quant_config=how).export(str(converted))
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
            interpreter.set_tensor(image["index"], _rounded(images, image))
            interpreter.invoke()
            return _plain(interpreter.get_tensor(output["index"]), output)

        settings = {"delegate": "XNNPACK", "num_threads": str(threads)}
        return ArraySession(executable, compute, tuple(shape), threads, settings, batch)


def _rounded(images: NDArray[np.float32], tensor: Mapping[str, Any]) -> NDArray[Any]:
    """Return inputs as the tensor stores them: programs in int8 take and give integers."""
    scale, zero = tensor["quantization"]
    if not scale:
        return images
    limits = np.iinfo(tensor["dtype"])
    steps = np.clip(np.round(images / scale) + zero, limits.min, limits.max)
    rounded: NDArray[Any] = steps.astype(tensor["dtype"])
    return rounded


def _plain(outputs: NDArray[Any], tensor: Mapping[str, Any]) -> NDArray[Any]:
    """Return outputs in single precision."""
    scale, zero = tensor["quantization"]
    if not scale:
        return outputs
    plain: NDArray[Any] = (outputs.astype(np.float32) - zero) * np.float32(scale)
    return plain


def _static() -> Any:
    """Return the configuration with which the converter keeps the rounding of a program.

    Without it, all is computed in single precision. What the quantiser would choose is not used.
    """
    from litert_torch.quantize.pt2e_quantizer import (
        PT2EQuantizer,
        get_symmetric_quantization_config,
    )
    from litert_torch.quantize.quant_config import QuantConfig

    chosen = PT2EQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    return QuantConfig(pt2e_quantizer=chosen)


PLUGINS = (
    Plugin(
        "runtime",
        "litert",
        LiteRT(),
        "LiteRT, formerly TensorFlow Lite, on the processor",
        extra="litert",
    ),
)
