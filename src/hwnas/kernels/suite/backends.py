"""Backends that compute operators: eager PyTorch, ``torch.compile`` and Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from hwnas.kernels.launch import cannot_run
from hwnas.kernels.operator import Inputs, Operator

__all__ = ["BACKENDS", "Backend", "CompiledByTorch", "ReferenceBackend", "TritonBackend"]


@runtime_checkable
class Backend(Protocol):
    """Backend that computes operators."""

    @property
    def name(self) -> str:
        """Name by which a user selects the backend."""
        ...

    def unavailable(self, device: torch.device) -> str | None:
        """Return why the backend cannot compute on a device, or None if it can."""
        ...

    def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
        """Return a call that computes the operator on these inputs, as `Operator.reference` does.

        Raises:
            HwnasError: The backend does not take the operator, or not with these inputs.
        """
        ...


@dataclass(frozen=True)
class ReferenceBackend:
    """Backend that computes the formulas in eager PyTorch."""

    name: str = "reference"

    def unavailable(self, device: torch.device) -> str | None:
        """Return None: eager PyTorch is always available."""
        return None

    def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
        """Return a call of the reference itself."""
        return lambda: operator.reference(**inputs)


@dataclass(frozen=True)
class CompiledByTorch:
    """Backend that compiles the formulas with ``torch.compile``.

    Attributes:
        mode: Mode of ``torch.compile``; ``max-autotune`` tunes for minutes.
    """

    name: str = "compile"
    mode: str = "default"

    def unavailable(self, device: torch.device) -> str | None:
        """Return None; without a compiler the call that `prepare` returns fails."""
        return None

    def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
        """Return a call of the reference, compiled for these shapes at the first call."""
        network = torch.compile(operator.reference, mode=self.mode, dynamic=False)
        return lambda: network(**inputs)


@dataclass(frozen=True)
class TritonBackend:
    """Backend that runs the Triton kernels of this package, in the interpreter if it is on."""

    name: str = "triton"

    def unavailable(self, device: torch.device) -> str | None:
        """Return why Triton cannot run on a device, or None if it can."""
        return cannot_run(device)

    def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
        """Return a call of the kernels, whether they are known to be fast or not."""
        return lambda: operator.run(inputs)


BACKENDS: dict[str, Backend] = {
    each.name: each for each in (TritonBackend(), ReferenceBackend(), CompiledByTorch())
}
"""Backends of PyTorch and of this package; others, such as ONNX Runtime's, are passed in."""
