"""Conversion of ONNX files to modules for the compilers of PyTorch programs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hwnas.deploy.error_line import first_line
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError

if TYPE_CHECKING:
    from torch import Tensor

    from hwnas.deploy.onnx.integer_program import ProgramStyle
    from hwnas.deploy.onnx.module import OnnxModule

__all__ = ["compiling", "traceable"]


def traceable(
    model: Path, target: Target, style: ProgramStyle | None = None
) -> tuple[OnnxModule, Tensor]:
    """Return a file as a module for the target's batch, and inputs (batch, *input_shape) for it.

    Args:
        model: ONNX file.
        target: Target of the program.
        style: What the compiler expects of a program in int8; None for targets without int8.

    Raises:
        ArtifactError: The file is missing, damaged, or has an operator that PyTorch does not know.
    """
    import torch

    from hwnas.deploy.onnx.integer_program import integer_program
    from hwnas.deploy.onnx.module import OnnxModule

    module = OnnxModule.load(model).eval().frozen(target.device.batch)
    if target.format == "int8" and style is not None:
        module = integer_program(module, style)
    return module, torch.zeros(target.device.batch, *module.input_shape)


@contextmanager
def compiling(model: Path) -> Iterator[None]:
    """Convert any exception of a compiler to one error that names the file.

    Warnings are ignored, because they concern the compiler's own code, which a user cannot change.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # tracing, lowering and compiling share no error class
        reason = first_line(error.__cause__ or error)
        raise ArtifactError(f"{model} cannot be compiled: {reason}") from error
