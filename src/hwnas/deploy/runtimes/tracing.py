"""Networks in the form that compilers of PyTorch's programs take."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hwnas.deploy.device import Target
from hwnas.deploy.first_line import first_line
from hwnas.errors import ArtifactError

if TYPE_CHECKING:
    from torch import Tensor

    from hwnas.deploy.onnx_module import OnnxModule

__all__ = ["compiling", "traceable"]


def traceable(model: Path, target: Target) -> tuple[OnnxModule, Tensor]:
    """A file as a module for the target's batch, and inputs (batch, *input_shape) for it.

    Raises:
        ArtifactError: The file is missing, damaged, or has an operator that PyTorch does not know.
    """
    import torch

    from hwnas.deploy.onnx_module import OnnxModule

    module = OnnxModule.load(model).eval().frozen(target.device.batch)
    return module, torch.zeros(target.device.batch, *module.input_shape)


@contextmanager
def compiling(model: Path) -> Iterator[None]:
    """What a compiler raises, each part of it in its own way, as one error that names the file.

    What it warns of is its own code, which nobody who has a network compiled can change.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # tracing, lowering and compiling have no error in common
        reason = first_line(error.__cause__ or error)
        raise ArtifactError(f"{model} cannot be compiled: {reason}") from error
