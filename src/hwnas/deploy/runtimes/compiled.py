"""PyTorch's compiler on the CPU of this machine: just in time, and ahead of time.

Both generate C++ and compile it, which takes from ten seconds to minutes for each network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from hwnas.deploy.runtimes.checks import check_usable, missing_compiler, missing_package
from hwnas.deploy.runtimes.pytorch import tensor_session, with_threads
from hwnas.deploy.runtimes.session import ArraySession
from hwnas.deploy.runtimes.tracing import compiling, traceable
from hwnas.deploy.targets.target import Target

if TYPE_CHECKING:
    from torch import nn
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "AOTInductor", "TorchCompile"]

_OPTIONS: dict[str, Any] = {"freezing": True}
"""Options of the compiler: weights are constants, which it folds and lays out anew."""
_SHAPE = "input_shape"


@dataclass(frozen=True)
class TorchCompile:
    """``torch.compile`` for one batch size, without graph breaks."""

    name: str = "pytorch_compile"
    formats: tuple[str, ...] = ("fp32",)
    hardware: tuple[str, ...] = ("cpu",)
    packages: tuple[str, ...] = ("torch",)

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Return why the runtime cannot be used here and what to install, or None if it can."""
        return missing_package("torch", "torch") or missing_compiler()

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Return the ONNX file itself; `load` compiles it."""
        return artifact

    def load(self, executable: Path, target: Target) -> ArraySession:
        """Compile an ONNX file with one float32 input.

        Raises:
            ArtifactError: The file is missing or damaged, or the compiler does not support it.
            DeviceError: PyTorch or a C++ compiler is missing, or the target has more threads than
                this machine has cores.
        """
        check_usable(self, target)
        import torch

        module, images = traceable(executable, target)
        _have_own_code(module)
        threads = target.device.threads
        network = torch.compile(module, fullgraph=True, dynamic=False, options=_OPTIONS)
        with compiling(executable), torch.inference_mode(), with_threads(threads):
            network(images.clone())  # an inference-mode tensor, as in all runs
        return tensor_session(
            executable, network, module.input_shape, threads, "compile", batch=len(images)
        )


def _have_own_code(module: nn.Module) -> None:
    """Give a module a code object that it shares with no other module.

    The compiler keeps its results for all modules of a class in one list. It searches this list at
    every call, and refuses to compile a ninth module.
    """
    shared = type(module).forward
    own = FunctionType(shared.__code__.replace(), shared.__globals__, shared.__name__)
    module.forward = MethodType(own, module)


@dataclass(frozen=True)
class AOTInductor:
    """Shared library for one batch size, compiled ahead of time."""

    name: str = "aotinductor"
    formats: tuple[str, ...] = ("fp32",)
    hardware: tuple[str, ...] = ("cpu",)
    packages: tuple[str, ...] = ("torch",)

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Return why the runtime cannot be used here and what to install, or None if it can."""
        return missing_package("torch", "torch") or missing_compiler()

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Compile the file to a package of machine code in ``folder``.

        Raises:
            ArtifactError: The file is missing or damaged, or the compiler does not support it.
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
        """Load a package that `prepare` made.

        Loading executes code in the package, so a package from elsewhere is not safe.

        Raises:
            ArtifactError: The package is missing or damaged.
            DeviceError: PyTorch or a C++ compiler is missing, or the target has more threads than
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


PLUGINS = (
    Plugin("runtime", "pytorch_compile", TorchCompile(), "torch.compile on the processor"),
    Plugin("runtime", "aotinductor", AOTInductor(), "Networks that PyTorch compiles ahead of time"),
)
