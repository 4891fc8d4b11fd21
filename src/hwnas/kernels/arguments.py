"""What an operator is called with, looked at before a kernel is: shapes, types and names.

Kernels read memory by numbers that they are given, so what does not fit would not be noticed there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hwnas.errors import KernelError
from hwnas.kernels.activations import check_activation
from hwnas.kernels.sizes import dtype_name

__all__ = ["MOST", "check_activations", "check_counts", "check_shapes", "check_types", "reach"]

MOST = 2**31 - 1  # values that kernels count in 32 bits


def check_shapes(
    name: str, takes: str, fits: bool, inputs: Mapping[str, Any], *numbers: str
) -> None:
    """Look whether an operator takes tensors of such shapes.

    Args:
        name: Of the operator.
        takes: Its tensors and their shapes, in words.
        fits: Whether shapes fit each other.
        inputs: What it is called with, by name.
        numbers: Names of those that shapes have to fit, beside each other.

    Raises:
        KernelError: It does not.
    """
    if not fits:
        given = {key: tuple(value.shape) for key, value in _tensors(inputs).items()}
        also = "".join(f" and {key}={inputs[key]}" for key in numbers)
        raise KernelError(f"{name} takes {takes}; given {given}{also}")


def check_types(
    name: str, taken: Mapping[str, tuple[torch.dtype, ...]], inputs: Mapping[str, Any]
) -> None:
    """Look whether an operator takes all tensors in the types that they have.

    Args:
        name: Of the operator.
        taken: By name of a tensor; the others have to be of the type of the first one.
        inputs: What it is called with, by name.

    Raises:
        KernelError: It does not.
    """
    tensors = _tensors(inputs)
    first = next(iter(tensors.values())).dtype
    for key, value in tensors.items():
        types = dict.fromkeys(taken.get(key, (first,)))
        if value.dtype not in types:
            names = " or ".join(map(dtype_name, types))
            raise KernelError(f"{name} takes {key} in {names}; given {dtype_name(value.dtype)}")


def check_activations(inputs: Mapping[str, Any]) -> None:
    """Look whether what is called "activation", or ends so, is the name of one.

    Raises:
        KernelError: It is not.
    """
    for key, value in inputs.items():
        if key.endswith("activation"):
            check_activation(value, key)


def reach(tensor: Tensor) -> int:
    """Return the number of values from a tensor's first to its last one, as they lie in memory."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def check_counts(name: str, batched: str, *counts: int, allowed: int = MOST) -> None:
    """Refuse tensors in which 32 bits cannot count the values, before memory is taken for them.

    Args:
        name: Of the operator.
        batched: The size of which less makes tensors smaller.
        counts: Values of each tensor, or how far it reaches: inputs, outputs and workspaces.
        allowed: The most.

    Raises:
        KernelError: One is too large.
    """
    most = max(counts, default=0)
    if most > allowed:
        raise KernelError(
            f"{name} takes and gives tensors of at most {allowed:,} values, and one has {most:,}; "
            f"give it fewer {batched} at once"
        )


def _tensors(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    return {key: value for key, value in inputs.items() if isinstance(value, Tensor)}
