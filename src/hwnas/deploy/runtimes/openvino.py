"""OpenVINO on the CPU of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.error_line import first_line
from hwnas.deploy.onnx.graph import check_graph
from hwnas.deploy.onnx.node_names import refused
from hwnas.deploy.runtimes.checks import check_usable, missing_package
from hwnas.deploy.runtimes.onnx import in_format
from hwnas.deploy.targets.number_format import number_format
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "OpenVINO", "OpenVINOSession"]

_PRECISIONS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}
"""Precision of floating-point operators by number format; without a hint OpenVINO chooses it."""


@dataclass(frozen=True)
class OpenVINO:
    """CPU plugin of OpenVINO, with one request at a time."""

    name: str = "openvino"
    formats: tuple[str, ...] = ("fp32", "bf16", "int8")
    hardware: tuple[str, ...] = ("cpu",)
    packages: tuple[str, ...] = ("openvino",)

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Return why the runtime cannot be used here and what to install, or None if it can."""
        return missing_package("openvino", "'hwnas[openvino]'")

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Return the ONNX file itself, or a quantised one in ``folder``.

        Raises:
            ArtifactError: The file is damaged or cannot be quantised.
        """
        # The runtime computes in bf16 even if the file does not.
        plain = target.format == "bf16" and number_format(artifact) != "bf16"
        wanted = "fp32" if plain else target.format
        return in_format(artifact, wanted, target.device.batch, folder)

    def load(self, executable: Path, target: Target) -> OpenVINOSession:
        """Compile an ONNX file with one float32 input.

        Raises:
            ArtifactError: The file is missing, damaged or has other inputs.
            DeviceError: OpenVINO is not installed, or the target has too many threads.
        """
        check_usable(self, target)
        check_graph(executable)
        return OpenVINOSession(executable, target)


@cache
def _core(process: int) -> Any:
    """Return the one core of OpenVINO in a process, given its id.

    Each core replaces the stack on which the main thread handles signals. If several are destroyed
    in the order in which they were made, the thread keeps a freed stack, and Ctrl-C crashes.
    """
    import openvino

    return openvino.Core()


class OpenVINOSession:
    """File compiled by OpenVINO for the target's batch.

    Args:
        path: ONNX file, or OpenVINO's own.
        target: Target with its batch, threads and precision.
    """

    def __init__(self, path: Path, target: Target) -> None:
        core, self._path = _core(os.getpid()), path
        self._settings = {
            "INFERENCE_PRECISION_HINT": _PRECISIONS[target.format],
            "INFERENCE_NUM_THREADS": str(target.device.threads),
            "NUM_STREAMS": "1",
            "PERFORMANCE_HINT": "LATENCY",
        }
        try:
            model = core.read_model(path)
            if len(model.inputs) != 1:
                raise ArtifactError(f"{path} has {len(model.inputs)} inputs; expected one")
            sizes = list(model.input(0).partial_shape)[1:]
            if not all(size.is_static for size in sizes):
                raise ArtifactError(
                    f"{path}: all sizes of the input except the batch must be fixed"
                )
            self._input_shape = tuple(size.get_length() for size in sizes)
            compiled = core.compile_model(model, "CPU", self._settings)
        except RuntimeError as error:
            raise refused(path, "OpenVINO", _reason(error)) from error
        self._request = compiled.create_infer_request()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the input without the batch."""
        return self._input_shape

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings that affect latency."""
        return self._settings

    def run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        """Return the first output (N, ...) for float32 inputs (N, *input_shape).

        Raises:
            ArtifactError: The file cannot compute these inputs.
        """
        try:
            outputs: NDArray[Any] = self._request.infer([batch], share_inputs=True)[0]
        except RuntimeError as error:
            raise ArtifactError(f"{self._path} cannot be run: {first_line(error)}") from error
        return outputs

    def cpu_clock(self) -> float:
        """Return the CPU time of the process in seconds; OpenVINO computes in its own threads."""
        return time.process_time()


def _reason(error: Exception) -> str:
    """Return the line of an error that says why: which operators are unknown, or else the last."""
    lines = [line.strip(" -") for line in str(error).strip().splitlines()]
    return next((line for line in lines if line.startswith("No conversion rule")), lines[-1])


PLUGINS = (
    Plugin("runtime", "openvino", OpenVINO(), "OpenVINO on the processor", extra="openvino"),
)
