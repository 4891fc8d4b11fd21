"""Triton kernels of `hwnas.kernels` on a GPU of this machine.

A network's nodes are matched to operators, weights are laid out once, and all kernels of a run are
one CUDA graph. PyTorch computes unmatched nodes within the same graph, and they are listed. In an
int8 network they compute in half precision, and round where the file rounds.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.onnx.graph import copy_model
from hwnas.deploy.runtimes.checks import check_usable, missing_package
from hwnas.deploy.runtimes.onnx import in_format
from hwnas.deploy.runtimes.session import ArraySession, loading
from hwnas.deploy.targets.number_format import number_format
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError

if TYPE_CHECKING:
    import torch

    from hwnas.deploy.matching import Decide, MatchedNetwork
    from hwnas.deploy.matching.kernel_plan import KernelPlan
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "Triton", "TritonSession", "kernel_plan", "torch_type"]


@dataclass(frozen=True)
class Triton:
    """Runtime that uses the kernels of `hwnas.kernels`."""

    name: str = "triton"
    formats: tuple[str, ...] = ("fp32", "fp16", "bf16", "int8")
    hardware: tuple[str, ...] = ("cuda",)
    packages: tuple[str, ...] = ("torch", "triton")

    def unavailable(self, hardware: str = "cuda") -> str | None:
        """Return why the runtime cannot be used here and what to install, or None if it can."""
        missing = missing_package("torch", "torch") or missing_package("triton", "'hwnas[kernels]'")
        return missing or _missing_kernels() or _missing_gpu()

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Copy the ONNX file to ``folder``, with its plan of kernels beside it.

        If the file has to be quantised, the ranges are only good enough to time it. The plan is the
        one that ships with the file, if there is one, and otherwise a new one. It is JSON, and says
        which operators are used, how they are configured, and which nodes no operator matches.

        Raises:
            ArtifactError: The file is missing, damaged, in another format, or has an operator that
                PyTorch cannot run.
            StorageError: ``folder`` cannot be written.
        """
        from hwnas.deploy.matching.kernel_plan import plan_file

        _check_format(artifact, target)
        if target.format == "int8":
            artifact = in_format(artifact, "int8", target.device.batch, folder)
        model = folder / artifact.name
        shipped, plan = plan_file(artifact, target), plan_file(model, target)
        if model != artifact:
            copy_model(artifact, model)
        if not shipped.exists():
            kernel_plan(artifact, target).write(plan)
        elif shipped != plan:
            shutil.copyfile(shipped, plan)
        return model

    def load(self, executable: Path, target: Target) -> TritonSession:
        """Match an ONNX file with one float32 input, and capture it in a CUDA graph.

        Raises:
            ArtifactError: The file or its plan is missing or damaged, or the file has an operator
                that PyTorch cannot run.
            DeviceError: There is no GPU, or the target has more threads than this machine has
                cores.
        """
        check_usable(self, target)
        _check_format(executable, target)
        _check_quantised(executable, target)
        import torch

        device = torch.device("cuda")
        network, note = matched_network(executable, target, device)
        shape = network.input_shape
        with loading(executable):
            compute = _captured(network, (target.device.batch, *shape), device)
        return TritonSession(executable, compute, target, network, note)


class TritonSession(ArraySession):
    """Session of a matched network.

    Attributes:
        network: Matched network, which lists its operators, how they are computed, and what is left
            to PyTorch.
    """

    def __init__(
        self,
        path: Path,
        compute: Callable[[NDArray[np.float32]], NDArray[Any]],
        target: Target,
        network: MatchedNetwork,
        note: str = "",
    ) -> None:
        counts = (f"{count} {name}" for name, count in network.counts.items())
        left = (f"{count} {kind} ({why})" for (kind, why), count in network.left.items())
        settings = {
            "mode": "CUDA graph",
            "layout": "NHWC",
            "kernels": ", ".join(counts) or "none",
            "in PyTorch": "; ".join(left) or "nothing",
            "intra_op_threads": str(target.device.threads),
        }
        notes = "; ".join(filter(None, (note, network.note)))
        settings |= {"note": notes} if notes else {}
        threads, batch = target.device.threads, target.device.batch
        super().__init__(path, compute, network.input_shape, threads, settings, batch)
        self.network = network


def kernel_plan(model: Path, target: Target) -> KernelPlan:
    """Return the plan of how the operators of an ONNX file are computed on a target.

    Raises:
        ArtifactError: The file is missing or damaged, in another format than the target, or has an
            operator that PyTorch cannot run.
    """
    from hwnas.deploy.matching import chosen_calls, matched
    from hwnas.deploy.matching.kernel_plan import KernelPlan
    from hwnas.deploy.onnx.module import OnnxModule

    _check_format(model, target)
    _check_quantised(model, target)
    dtype = torch_type(target)
    graph = matched(OnnxModule.load(model).eval(), target.device.batch, dtype)
    return KernelPlan.of(graph, chosen_calls(graph, dtype), dtype, target)


def matched_network(
    model: Path, target: Target, device: torch.device
) -> tuple[MatchedNetwork, str]:
    """Return an ONNX file matched according to the plan beside it, and a note.

    The note says why the plan was not used, and is empty otherwise.

    Raises:
        ArtifactError: The file or its plan is missing or damaged, or the file has an operator that
            PyTorch cannot run.
    """
    from hwnas.deploy.matching import MatchedNetwork, matched
    from hwnas.deploy.onnx.module import OnnxModule

    decide, note = _planned(model, target)
    dtype = torch_type(target)
    graph = matched(OnnxModule.load(model).eval(), target.device.batch, dtype, decide)
    return MatchedNetwork(graph, dtype, device, decide), note


def _planned(model: Path, target: Target) -> tuple[Decide, str]:
    """Return the decisions of the plan beside a file, or new decisions with the reason for them.

    The reason is empty if the plan is used or there is none.
    """
    from hwnas.deploy.matching import decided
    from hwnas.deploy.matching.kernel_plan import KernelPlan, plan_file

    path = plan_file(model, target)
    if not path.exists():
        return decided, ""
    plan = KernelPlan.read(path)
    reason = plan.misfit(target)
    if not reason:
        return plan.decide, ""
    note = f"{reason}; default configurations are used"
    warnings.warn(f"{model.name}: {note}", RuntimeWarning, stacklevel=2)
    return decided, note


def _missing_kernels() -> str | None:
    if find_spec("hwnas.deploy.matching") is None:
        return "the single-file agent contains no kernels; run: pip install hwnas"
    return None


def _missing_gpu() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return "PyTorch finds no GPU; an NVIDIA GPU, its driver and CUDA are needed"
    from hwnas.kernels.launch import cannot_run

    return cannot_run(torch.device("cuda"))


def _check_format(model: Path, target: Target) -> None:
    found = number_format(model)
    if found not in ("fp32", target.format):
        raise ArtifactError(
            f"{model} computes in {found} and the target in {target.format}; choose a target with "
            f"{found} or give the file in fp32"
        )


def _check_quantised(model: Path, target: Target) -> None:
    if target.format == "int8" and number_format(model) != "int8":
        raise ArtifactError(f"{model} is not quantised; prepare it for {target.name}")


def torch_type(target: Target) -> torch.dtype:
    """Return the floating-point dtype that a network computes in on a target."""
    import torch

    types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    return types.get(target.format, torch.float16)


def _captured(
    network: MatchedNetwork, shape: tuple[int, ...], device: torch.device
) -> Callable[[NDArray[np.float32]], NDArray[Any]]:
    """Return a function that copies a batch to the GPU, runs all kernels and returns outputs."""
    import torch

    images = torch.zeros(shape, device=device)
    sent = torch.zeros(shape, pin_memory=True)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    # PyTorch computes float32 exactly, as the kernels do, and not in TensorFloat-32.
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False)
    with torch.inference_mode(), exact:
        with torch.cuda.stream(stream):
            for _ in range(3):  # compile kernels, and let libraries choose theirs
                network(images)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            outputs = network(images)

    def compute(batch: NDArray[np.float32]) -> NDArray[Any]:
        with torch.inference_mode():
            sent.copy_(torch.from_numpy(batch))
            images.copy_(sent, non_blocking=True)
            graph.replay()
            found: NDArray[Any] = outputs.cpu().numpy()
        return found

    return compute


PLUGINS = (Plugin("runtime", "triton", Triton(), "Triton kernels of hwnas on an NVIDIA GPU"),)
