"""ONNX Runtime on the CPU or GPU of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.error_line import first_line
from hwnas.deploy.onnx.graph import check_graph
from hwnas.deploy.onnx.node_names import refused
from hwnas.deploy.quantization.quantize import quantize_int8, random_batches
from hwnas.deploy.runtimes.checks import check_usable, missing_package
from hwnas.deploy.runtimes.session import cpu_seconds
from hwnas.deploy.targets.gpu import gpu_name
from hwnas.deploy.targets.number_format import number_format, to_float16
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError, DeviceError
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "OnnxRuntime", "OnnxSession", "in_format"]

_ON_CPU = "CPUExecutionProvider"
_NO_MEMORY = "Failed to allocate memory"  # part of ONNX Runtime's message


_INSTALL_GPU = "pip uninstall onnxruntime; pip install onnxruntime-gpu"


@dataclass(frozen=True)
class OnnxRuntime:
    """ONNX Runtime with all graph optimisations.

    Attributes:
        name: Name in the names of targets.
        formats: Number formats that it computes in.
        hardware: Hardware of this machine on which hwnas uses it.
        providers: Execution provider for each hardware.
    """

    name: str = "onnxruntime"
    formats: tuple[str, ...] = ("fp32", "fp16", "int8")
    hardware: tuple[str, ...] = ("cpu", "cuda")
    packages: tuple[str, ...] = ("onnxruntime", "onnxruntime-gpu")
    providers: Mapping[str, str] = field(
        default_factory=lambda: {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
    )

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Return why the runtime cannot be used here and what to install, or None if it can."""
        if hardware == "cpu":
            return missing_package("onnxruntime", "onnxruntime")
        if find_spec("onnxruntime") is None:
            return f"onnxruntime is not installed; run: {_INSTALL_GPU}"
        import onnxruntime

        if self.providers[hardware] not in onnxruntime.get_available_providers():
            return f"this onnxruntime has no {self.providers[hardware]}; run: {_INSTALL_GPU}"
        return None if gpu_name() else "the system reports no NVIDIA GPU; check its driver"

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Return the ONNX file if it is in the target's format, or a converted one in ``folder``.

        Raises:
            ArtifactError: The file is damaged or cannot be converted.
        """
        return in_format(artifact, target.format, target.device.batch, folder)

    def load(self, executable: Path, target: Target) -> OnnxSession:
        """Load an ONNX file with one float32 input.

        Raises:
            ArtifactError: The file is missing, damaged or has other inputs than one of float32.
            DeviceError: ONNX Runtime is not installed, or the target has more threads than this
                machine has cores.
        """
        check_usable(self, target)
        device = target.device
        provider = self.providers[device.hardware]
        return OnnxSession(executable, device.batch, device.threads, provider=provider)


def in_format(artifact: Path, wanted: str, batch: int, folder: Path) -> Path:
    """Return an ONNX file that computes in a given number format.

    Args:
        artifact: File in that format or in single precision.
        wanted: ``"fp32"``, ``"fp16"`` or ``"int8"``. If the file has to be quantised, the ranges of
            activations are those of random inputs, which is enough to time it.
        batch: Number of images in a run.
        folder: Folder for a converted file.

    Raises:
        ArtifactError: The file is damaged, in a third format, or cannot be converted.
    """
    check_graph(artifact)
    found = number_format(artifact)
    if found == wanted:
        return artifact
    if found != "fp32":
        raise ArtifactError(
            f"{artifact} computes in {found} and the target in {wanted}; choose a target with "
            f"{found} or give the file in fp32"
        )
    converted = folder / f"{artifact.stem}-{wanted}.onnx"
    if wanted == "fp16":
        return to_float16(artifact, converted)
    shape = OnnxSession(artifact, batch, 1).input_shape
    return quantize_int8(artifact, converted, random_batches(shape, batch), ranges=["full"])


class OnnxSession:
    """ONNX file loaded into ONNX Runtime.

    Args:
        path: ONNX file.
        batch: Number of images in a run that the file must accept.
        threads: Number of threads of one operator; operators run one after the other.
        profile: Prefix of the path of a file that kernel times are written to; None for no profile.
        provider: Execution provider; the CPU executes operators that it does not support.
        optimised: Whether operators are fused. If not, files in int8 are computed as ONNX defines
            them, without sums that overflow on processors without VNNI.
    """

    def __init__(
        self,
        path: Path,
        batch: int,
        threads: int,
        profile: Path | None = None,
        provider: str = _ON_CPU,
        optimised: bool = True,
    ) -> None:
        check_graph(path)
        self._level = "ORT_ENABLE_ALL" if optimised else "ORT_DISABLE_ALL"
        self._session = _open(path, threads, profile, provider, self._level)
        self._path, self._threads, self._provider = path, threads, provider
        self._input, self._input_shape = _image_input(self._session, path, batch)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the input without the batch."""
        return self._input_shape

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings that affect latency."""
        return {
            "provider": self._provider,
            "graph_optimization_level": self._level,
            "execution_mode": "sequential",
            "intra_op_threads": str(self._threads),
            "allow_spinning": "0",
        }

    def run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        """Return the first output (N, ...) for float32 inputs (N, *input_shape).

        Raises:
            ArtifactError: The file cannot compute these inputs.
            DeviceError: There is not enough memory.
        """
        try:
            outputs: NDArray[Any] = self._session.run(None, {self._input: batch})[0]
        except Exception as error:  # ONNX Runtime's errors have no other common base class
            if _NO_MEMORY in str(error):
                raise DeviceError(f"there is not enough memory to run {self._path}") from error
            raise ArtifactError(f"{self._path} cannot be run: {first_line(error)}") from error
        return outputs

    def end_profile(self) -> Path:
        """Write the times of all kernels so far to a file, and return its path."""
        return Path(self._session.end_profiling())

    def cpu_clock(self) -> float:
        """Return the CPU time in seconds that the computing threads have used so far."""
        return cpu_seconds(self._threads)


def _open(path: Path, threads: int, profile: Path | None, provider: str, level: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that spin while waiting make a busy machine several times slower.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4  # errors are raised as exceptions too
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = os.fspath(profile)
    providers = list(dict.fromkeys([provider, _ON_CPU]))
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=providers)
    except Exception as error:  # ONNX Runtime's errors have no other common base class
        raise refused(path, "ONNX Runtime", first_line(error)) from error
    if session.get_providers()[0] != provider:  # ONNX Runtime only logs that it is missing
        raise DeviceError(
            f"{provider} could not be loaded; install the CUDA, cuDNN and TensorRT versions that "
            f"onnxruntime {onnxruntime.__version__} was built for"
        )
    return session


def _image_input(session: Any, path: Path, batch: int) -> tuple[str, tuple[int, ...]]:
    """Return the name of a model's only input, and its shape without the batch."""
    inputs = [(i.name, i.type, i.shape) for i in session.get_inputs()]
    if len(inputs) != 1 or inputs[0][1] != "tensor(float)" or not inputs[0][2]:
        raise ArtifactError(f"{path} has the inputs {inputs}; expected one float32 batch of images")
    name, _, (n, *sizes) = inputs[0]
    if not all(isinstance(size, int) for size in sizes):
        raise ArtifactError(
            f"{path} takes inputs of shape {[n, *sizes]}; all sizes except the batch must be fixed"
        )
    if isinstance(n, int) and n != batch:
        raise ArtifactError(
            f"{path} takes batches of {n}, but the target has a batch of {batch}; "
            f"choose a target with -b{n} or export with a dynamic batch"
        )
    return name, tuple(sizes)


_TENSORRT = OnnxRuntime(
    "tensorrt", hardware=("cuda",), providers={"cuda": "TensorrtExecutionProvider"}
)
PLUGINS = (
    Plugin(
        "runtime",
        "onnxruntime",
        OnnxRuntime(),
        "ONNX Runtime on the processor or an NVIDIA GPU",
        usual=True,
    ),
    Plugin("runtime", "tensorrt", _TENSORRT, "TensorRT, as an execution provider of ONNX Runtime"),
)
