"""Ways to compute operators: the formula as it is, what the compiler makes of it, and kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from hwnas.kernels.launch import cannot_run
from hwnas.kernels.operator import Inputs, Operator

__all__ = ["BACKENDS", "Backend", "CompiledByTorch", "Kernels", "Reference"]


@runtime_checkable
class Backend(Protocol):
    """A way to compute operators."""

    @property
    def name(self) -> str:
        """As it is asked for."""
        ...

    def unavailable(self, device: torch.device) -> str | None:
        """Why it cannot compute on a device, or None if it can."""
        ...

    def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
        """A call that computes the operator on these inputs, as `Operator.reference` does.

        Raises:
            HwnasError: It does not take the operator, or not with these inputs.
        """
        ...


@dataclass(frozen=True)
class Reference:
    """The formulas in eager PyTorch."""

    name: str = "reference"

    def unavailable(self, device: torch.device) -> str | None:
        """Never."""
        return None

    def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
        """The reference itself."""
        return lambda: operator.reference(**inputs)


@dataclass(frozen=True)
class CompiledByTorch:
    """The formulas through ``torch.compile``.

    Attributes:
        mode: Of ``torch.compile``; ``max-autotune`` tunes for minutes.
    """

    name: str = "compile"
    mode: str = "default"

    def unavailable(self, device: torch.device) -> str | None:
        """Never; where there is no compiler, `prepare`'s call fails."""
        return None

    def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
        """The reference, compiled for these shapes at the first call."""
        network = torch.compile(operator.reference, mode=self.mode, dynamic=False)
        return lambda: network(**inputs)


@dataclass(frozen=True)
class Kernels:
    """Our own kernels, interpreted where there is no card."""

    name: str = "triton"

    def unavailable(self, device: torch.device) -> str | None:
        """Why Triton cannot run there."""
        return cannot_run(device)

    def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
        """The kernels, whatever is known of their speed."""
        return lambda: operator.run(inputs)


BACKENDS: dict[str, Backend] = {
    each.name: each for each in (Kernels(), Reference(), CompiledByTorch())
}
"""Those of PyTorch; others, such as ONNX Runtime's, are passed in."""
