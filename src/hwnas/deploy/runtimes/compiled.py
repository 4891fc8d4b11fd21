"""PyTorch's compiler on the processor of this machine: as it goes, and ahead of time.

Both write C++ and compile it, which takes from ten seconds to minutes a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwnas.deploy.device import FORMATS, Target
from hwnas.deploy.runtimes.checks import check_usable, missing_compiler, missing_package
from hwnas.deploy.runtimes.pytorch import PyTorchSession, with_threads
from hwnas.deploy.runtimes.tracing import compiling, traceable

__all__ = ["AOTInductor", "TorchCompile"]

_OPTIONS: dict[str, Any] = {"freezing": True}
"""Weights are constants, which the compiler folds and lays out anew."""
_SHAPE = "input_shape"


@dataclass(frozen=True)
class TorchCompile:
    """``torch.compile`` for one batch size, without a break in the graph."""

    name: str = "pytorch_compile"
    formats: tuple[str, ...] = FORMATS["pytorch_compile"]
    packages: tuple[str, ...] = ("torch",)

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Why it cannot be used here and what to install, or None if it can."""
        return missing_package("torch", "torch") or missing_compiler()

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """The ONNX file itself; `load` compiles it."""
        return artifact

    def load(self, executable: Path, target: Target) -> PyTorchSession:
        """Compile an ONNX file with one float32 input.

        Raises:
            ArtifactError: The file is missing, damaged, or not what the compiler takes.
            DeviceError: There is no PyTorch or no C++ compiler, or the target has more threads than
                this machine has cores.
        """
        check_usable(self, target)
        import torch

        module, images = traceable(executable, target)
        threads = target.device.threads
        network = torch.compile(module, fullgraph=True, dynamic=False, options=_OPTIONS)
        with compiling(executable), torch.inference_mode(), with_threads(threads):
            network(images)
        return PyTorchSession(
            executable, network, module.input_shape, threads, "compile", batch=len(images)
        )


@dataclass(frozen=True)
class AOTInductor:
    """A library of machine code for one batch size, made ahead of time."""

    name: str = "aotinductor"
    formats: tuple[str, ...] = FORMATS["aotinductor"]
    packages: tuple[str, ...] = ("torch",)

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Why it cannot be used here and what to install, or None if it can."""
        return missing_package("torch", "torch") or missing_compiler()

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """A package of machine code in ``folder``.

        Raises:
            ArtifactError: The file is missing, damaged, or not what the compiler takes.
        """
        import torch
        from torch._inductor import aoti_compile_and_package

        module, images = traceable(artifact, target)
        package = folder / f"{artifact.stem}.pt2"
        shape = "x".join(map(str, images.shape))
        options = {**_OPTIONS, "aot_inductor.metadata": {_SHAPE: shape}}
        with compiling(artifact), torch.no_grad(), with_threads(target.device.threads):
            program = torch.export.export(module, (images,))
            aoti_compile_and_package(program, package_path=str(package), inductor_configs=options)
        return package

    def load(self, executable: Path, target: Target) -> PyTorchSession:
        """Load a package that `prepare` made; one from elsewhere is code that would be executed.

        Raises:
            ArtifactError: The package is missing or damaged.
            DeviceError: There is no PyTorch or no C++ compiler, or the target has more threads than
                this machine has cores.
        """
        check_usable(self, target)
        from torch._inductor import aoti_load_package

        with compiling(executable):
            network = aoti_load_package(str(executable))
            batch, *shape = map(int, network.get_metadata()[_SHAPE].split("x"))
        threads = target.device.threads
        return PyTorchSession(
            executable, network, tuple(shape), threads, "ahead of time", batch=batch
        )
