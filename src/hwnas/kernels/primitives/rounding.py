"""Rounding to bfloat16 in Triton's interpreter as on a GPU: to the nearest, ties to even.

By itself the interpreter truncates the lower half of a float32. That doubles the error, and always
rounds towards zero, so that errors add up over the layers of a kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from triton import language

__all__ = ["round_in_interpreter"]


def round_in_interpreter() -> None:
    """Replace the rounding in the interpreter of this process, for good."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    cast = builder.cast_impl

    def rounding(this: Any, value: Any, to: Any) -> Any:
        if (value.dtype.scalar, to.scalar) != (language.float32, language.bfloat16):
            return cast(this, value, to)
        nearest = torch.from_numpy(value.data.copy()).bfloat16()
        return interpreter.TensorHandle(nearest.view(torch.uint16).numpy(), to.scalar)

    builder.cast_impl = rounding
