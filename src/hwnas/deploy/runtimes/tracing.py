"""Networks in the form that compilers of PyTorch's programs take."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.device import Target
from hwnas.deploy.first_line import first_line
from hwnas.errors import ArtifactError

if TYPE_CHECKING:
    from torch import Tensor

    from hwnas.deploy.onnx_module import OnnxModule

__all__ = ["compiling", "in_batches", "traceable"]


def traceable(model: Path, target: Target) -> tuple[OnnxModule, Tensor]:
    """A file as a module for the target's batch, and inputs (batch, *input_shape) for it.

    Raises:
        ArtifactError: The file is missing, damaged, or has an operator that PyTorch does not know.
    """
    import torch

    from hwnas.deploy.onnx_module import OnnxModule

    module = OnnxModule.load(model).eval().frozen(target.device.batch)
    return module, torch.zeros(target.device.batch, *module.input_shape)


def in_batches(
    run: Callable[[NDArray[np.float32]], NDArray[Any]], inputs: NDArray[np.float32], size: int
) -> NDArray[Any]:
    """Outputs (N, ...) of inputs (N, ...), from what takes batches of one size only.

    Args:
        run: Gives a new array for a batch of ``size``.
        inputs: Any number of them; the last batch is filled up with zeros.
        size: Of a batch.
    """
    if len(inputs) == size:
        return run(np.ascontiguousarray(inputs))
    missing = -len(inputs) % size
    padded = np.concatenate([inputs, np.zeros((missing, *inputs.shape[1:]), inputs.dtype)])
    outputs = [run(padded[i : i + size]) for i in range(0, len(padded), size)]
    return np.concatenate(outputs)[: len(inputs)]


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
