"""One start of a Triton kernel, as a value that can be run, interpreted or compiled ahead."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton import knobs

from hwnas.kernels.rounding import round_in_interpreter

__all__ = ["Launch", "cannot_run", "interpreting"]


@dataclass(frozen=True)
class Launch:
    """A kernel and all that it is started with.

    Attributes:
        kernel: A function decorated with ``triton.jit``.
        grid: Number of programs along each of up to three axes.
        arguments: Values by name of what the kernel takes at run time. A tensor that it can do
            without is None.
        constants: Values by name of its ``tl.constexpr`` parameters.
        num_warps: Of each program, of 32 threads each.
        num_stages: Loads that are under way at a time in loops.
        max_registers: That a thread can have. Left to itself, NVIDIA's assembler moves some values
            to memory where that lets more programs in; told a number, it takes what it needs.
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
        """What Triton's compiler is told; a multiplication and an addition are one instruction."""
        warps, stages = self.num_warps, self.num_stages
        limit = {} if self.max_registers is None else {"maxnreg": self.max_registers}
        return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True, **limit}

    def run(self) -> None:
        """Start it; on a GPU it is then under way, in the interpreter it is done."""
        start = self.kernel[self.grid]
        if not interpreting():
            start(**self.arguments, **self.constants, **self.options)
            return
        # numpy, which interprets, warns of what a GPU does not, in two ways
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            start(**self.arguments, **self.constants, **self.options)


def interpreting() -> bool:
    """Whether kernels are run by Triton's interpreter, in numpy, on tensors of the CPU.

    That is so where ``TRITON_INTERPRET=1`` was set before `hwnas.kernels` was imported.
    """
    return bool(knobs.runtime.interpret)


if interpreting():
    round_in_interpreter()


def cannot_run(device: torch.device) -> str | None:
    """Why kernels cannot be run on tensors of a device, or None if they can."""
    if interpreting():
        return None
    if device.type != "cuda":
        return f"Triton has no kernels for tensors on {device.type!r}"
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except Exception as error:  # drivers that are missing or too old say so in many ways
        return f"Triton finds no driver: {str(error).splitlines()[0]}"
    return None
