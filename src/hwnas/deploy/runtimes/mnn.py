"""MNN, an engine for phones and small computers, on the CPU of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.onnx.node_names import refused
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


@dataclass(frozen=True)
class MNN:
    """CPU backend of MNN in single precision."""

    name: str = "mnn"
    formats: tuple[str, ...] = ("fp32",)
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
        artifact = in_format(artifact, target.format, target.device.batch, folder)
        converted = folder / f"{artifact.stem}.mnn"
        self.convert(artifact, converted)
        return converted

    def convert(self, artifact: Path, converted: Path, *options: str) -> None:
        """Convert an ONNX file to an MNN file, with further options of MNN's converter.

        Raises:
            ArtifactError: The file is missing, damaged or has operators that MNN does not support.
        """
        command = [sys.executable, "-c", _CONVERT, "-f", "ONNX", "--bizCode", "hwnas"]
        command += ["--modelFile", os.fspath(artifact), "--MNNModel", os.fspath(converted)]
        command += options
        try:  # in its own process, because the converter aborts on unsupported files
            output = subprocess.run(
                command, capture_output=True, text=True, timeout=_CONVERT_SECONDS, errors="replace"
            ).stdout
        except subprocess.TimeoutExpired:
            output = f"no result within {_CONVERT_SECONDS} s"
        if not converted.is_file():
            raise refused(artifact, "MNN", _complaint(output))

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


def _complaint(output: str) -> str:
    """Return the line of the converter's output that states the error, without its prefix."""
    lines = [re.sub(r"^(\[.*?\]|[\s:=>\d])*", "", line) for line in output.splitlines()]
    wrong = [each for each in lines if re.search("not support|fail|error", each, re.IGNORECASE)]
    return [*wrong, *filter(None, reversed(lines)), "the converter gave no message"][0]


PLUGINS = (Plugin("runtime", "mnn", MNN(), "MNN on the processor", extra="mnn"),)
