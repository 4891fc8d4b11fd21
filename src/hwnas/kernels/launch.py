"""Launch of a Triton kernel, as a value that can be run, interpreted or compiled ahead of time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton import knobs

from hwnas.kernels.primitives.rounding import round_in_interpreter

__all__ = ["Launch", "cannot_run", "interpreting"]


@dataclass(frozen=True)
class Launch:
    """Kernel with its grid, arguments and compiler options.

    Attributes:
        kernel: Function decorated with ``triton.jit``.
        grid: Number of programs along each of up to three axes.
        arguments: Run-time arguments of the kernel by name; None for an optional tensor that is
            left out.
        constants: Values of the kernel's ``tl.constexpr`` parameters by name.
        num_warps: Number of warps of each program, of 32 threads each.
        num_stages: Number of loads in flight at a time in loops.
        max_registers: Most registers of a thread. If None, NVIDIA's assembler moves some values to
            memory where that lets more programs in. Given a number, it takes the registers that it
            needs.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Tensor | int | float | None]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    max_registers: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options of Triton's compiler, with multiply-add fusion."""
        warps, stages = self.num_warps, self.num_stages
        limit = {} if self.max_registers is None else {"maxnreg": self.max_registers}
        return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True, **limit}

    def run(self) -> None:
        """Run the kernel: asynchronously on a GPU, and to its end in the interpreter."""
        start = self.kernel[self.grid]
        if not interpreting():
            start(**self.arguments, **self.constants, **self.options)
            return
        # numpy, which the interpreter uses, warns in two ways of what a GPU does not report
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            start(**self.arguments, **self.constants, **self.options)


def interpreting() -> bool:
    """Return whether Triton's interpreter runs kernels, in numpy, on CPU tensors.

    That is so if ``TRITON_INTERPRET=1`` was set before `hwnas.kernels` was imported.
    """
    return bool(knobs.runtime.interpret)


if interpreting():
    round_in_interpreter()


def cannot_run(device: torch.device) -> str | None:
    """Return why kernels cannot run on tensors of a device, or None if they can."""
    if interpreting():
        return None
    if device.type != "cuda":
        return f"Triton has no kernels for tensors on {device.type!r}"
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except Exception as error:  # missing or old drivers raise many kinds of errors
        return f"Triton finds no driver: {str(error).splitlines()[0]}"
    return None
