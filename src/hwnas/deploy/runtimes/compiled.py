"""PyTorch's compiler on the processor of this machine: as it goes, and ahead of time.

Both write C++ and compile it, which takes from ten seconds to minutes a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from hwnas.deploy.device import FORMATS, Target
from hwnas.deploy.runtimes.checks import check_usable, missing_compiler, missing_package
from hwnas.deploy.runtimes.pytorch import tensor_session, with_threads
from hwnas.deploy.runtimes.session import ArraySession
from hwnas.deploy.runtimes.tracing import compiling, traceable

if TYPE_CHECKING:
    from torch import nn

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

    def load(self, executable: Path, target: Target) -> ArraySession:
        """Compile an ONNX file with one float32 input.

        Raises:
            ArtifactError: The file is missing, damaged, or not what the compiler takes.
            DeviceError: There is no PyTorch or no C++ compiler, or the target has more threads than
                this machine has cores.
        """
        check_usable(self, target)
        import torch

        module, images = traceable(executable, target)
        _have_own_code(module)
        threads = target.device.threads
        network = torch.compile(module, fullgraph=True, dynamic=False, options=_OPTIONS)
        with compiling(executable), torch.inference_mode(), with_threads(threads):
            network(images.clone())  # a tensor of this mode, as those of all runs are
        return tensor_session(
            executable, network, module.input_shape, threads, "compile", batch=len(images)
        )


def _have_own_code(module: nn.Module) -> None:
    """Give a module code that it shares with no other.

    The compiler keeps what it made of all modules of a class in one list, which it searches at
    every call, and refuses to make a ninth.
    """
    shared = type(module).forward
    own = FunctionType(shared.__code__.replace(), shared.__globals__, shared.__name__)
    module.forward = MethodType(own, module)


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

    def load(self, executable: Path, target: Target) -> ArraySession:
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
        return tensor_session(
            executable, network, tuple(shape), threads, "ahead of time", batch=batch
        )
