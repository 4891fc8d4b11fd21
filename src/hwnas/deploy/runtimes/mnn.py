"""MNN, an engine for phones and small computers, on the CPU of this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.onnx.node_names import refused
from hwnas.deploy.onnx.rounded_layers import RoundedLayer, TensorGrid, rounded_layers
from hwnas.deploy.runtimes.checks import check_usable, missing_package
from hwnas.deploy.runtimes.onnx import in_format
from hwnas.deploy.runtimes.session import ArraySession, loading
from hwnas.deploy.silence import silenced
from hwnas.deploy.targets.target import Target
from hwnas.registry import Plugin

__all__ = ["MNN", "PLUGINS"]

# The command mnnconvert is not used, because it reports conversions to its makers.
_CONVERT = "import sys, _tools; _tools.mnnconvert(sys.argv)"
_CONVERT_SECONDS = 300
_LIMITS_OF_WEIGHTS = {"clamp_min": -127, "clamp_max": 127}


@dataclass(frozen=True)
class MNN:
    """CPU backend of MNN, whose int8 files keep the rounding of the ONNX files in int8."""

    name: str = "mnn"
    formats: tuple[str, ...] = ("fp32", "int8")
    hardware: tuple[str, ...] = ("cpu",)
    packages: tuple[str, ...] = ("mnn",)

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Return why the runtime cannot be used here and what to install, or None if it can."""
        return missing_package("MNN", "'hwnas[mnn]'")

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Convert the file to an MNN file in ``folder``.

        Raises:
            ArtifactError: The file is missing, damaged or has operators that MNN does not support.
        """
        given = in_format(artifact, target.format, target.device.batch, folder)
        converted = folder / f"{artifact.stem}.mnn"
        if target.format == "int8":
            self._convert_int8(artifact, given, converted)
        else:
            self.convert(given, converted)
        return converted

    def convert(self, artifact: Path, converted: Path, *options: str) -> None:
        """Convert an ONNX file to an MNN file, with further options of MNN's converter.

        Raises:
            ArtifactError: The file is missing, damaged or has operators that MNN does not support.
        """
        _convert(artifact, "ONNX", artifact, converted, *options)

    def _convert_int8(self, artifact: Path, rounded: Path, converted: Path) -> None:
        """Convert a file in int8 by way of one in single precision and its rounding, as JSON."""
        import onnx

        model, layers = rounded_layers(rounded)
        with tempfile.TemporaryDirectory() as name:
            plain = Path(name, "plain.onnx")
            onnx.save(model, plain)
            # Not in one step, which loses the weights of large matrix products.
            whole, rounding = Path(name, "whole.mnn"), Path(name, "rounding.json")
            _convert(artifact, "ONNX", plain, whole)
            rounding.write_text(json.dumps(_rounding(layers)), encoding="utf-8")
            options = ("--compressionParamsFile", os.fspath(rounding), "--optimizeLevel", "0")
            _convert(artifact, "MNN", whole, converted, *options)

    def load(self, executable: Path, target: Target) -> ArraySession:
        """Load a file that `prepare` made.

        Raises:
            ArtifactError: The file is missing or damaged.
            DeviceError: MNN is not installed, or the target has more threads than this machine has
                cores.
        """
        check_usable(self, target)
        # "high" is single precision; otherwise MNN may use less where the processor supports it.
        threads = target.device.threads
        settings = {"backend": "CPU", "precision": "high", "numThread": threads}
        # MNN writes to the standard output, where JSON may be expected.
        with loading(executable), silenced("stdout"):
            import MNN.expr
            import MNN.nn

            manager = MNN.nn.create_runtime_manager((settings,))
            path = os.fspath(executable)
            module = MNN.nn.load_module_from_file(path, [], [], runtime_manager=manager)
            [image] = module.get_info()["inputs"]
            shape = tuple(int(size) for size in image.shape[1:])
        tensors = MNN.expr
        layout, kind = tensors.data_format.NCHW, tensors.dtype.float

        def compute(inputs: NDArray[np.float32]) -> NDArray[Any]:
            outputs = module.forward(tensors.const(inputs, list(inputs.shape), layout, kind))
            if outputs.data_format == tensors.data_format.NC4HW4:
                outputs = tensors.convert(outputs, layout)
            return np.array(outputs.read())

        output = {name: str(value) for name, value in settings.items()}
        return ArraySession(executable, compute, shape, threads, output)


def _convert(artifact: Path, kind: str, source: Path, to: Path, *options: str) -> None:
    """Run MNN's converter in its own process, since it aborts on unsupported files.

    Raises:
        ArtifactError: It made no file; the message names ``artifact``, the user's file.
    """
    command = [sys.executable, "-c", _CONVERT, "-f", kind, "--bizCode", "hwnas", *options]
    command += ["--modelFile", os.fspath(source.resolve()), "--MNNModel", os.fspath(to.resolve())]
    with tempfile.TemporaryDirectory() as folder:  # it writes a file into the current folder
        try:
            output = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=_CONVERT_SECONDS,
                errors="replace",
            ).stdout
        except subprocess.TimeoutExpired:
            output = f"no result within {_CONVERT_SECONDS} s"
    if not to.is_file():
        raise refused(artifact, "MNN", _complaint(output))


def _rounding(layers: Sequence[RoundedLayer]) -> dict[str, Any]:
    """Return the rounding of layers as MNN's message ``Compression.Pipeline``, in JSON."""
    found = [
        {
            "input": [_activations(layer.inputs)],
            "weight": [{"name": "weights", "scales": layer.weights, **_LIMITS_OF_WEIGHTS}],
            "output": [_activations(grid)],
        }
        for layer in layers
        for grid in layer.outputs
    ]
    return {"version": "0.0.0", "algo": [{"type": "QUANTIZE", "quant_params": {"layer": found}}]}


def _activations(grid: TensorGrid) -> dict[str, Any]:
    return {"name": grid.name, "scales": [grid.scale], "zero_point": grid.zero}


def _complaint(output: str) -> str:
    """Return the line of the converter's output that states the error, without its prefix."""
    lines = [re.sub(r"^(\[.*?\]|[\s:=>\d])*", "", line) for line in output.splitlines()]
    wrong = [each for each in lines if re.search("not support|fail|error", each, re.IGNORECASE)]
    return [*wrong, *filter(None, reversed(lines)), "the converter gave no message"][0]


PLUGINS = (Plugin("runtime", "mnn", MNN(), "MNN on the processor", extra="mnn"),)
