"""Checks of the arguments of an operator before a kernel runs: shapes, types and names.

Kernels compute addresses from the sizes that they are given, so they would not notice a mismatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hwnas.errors import KernelError
from hwnas.kernels.primitives.activations import check_activation
from hwnas.kernels.sizes import dtype_name

__all__ = ["MOST", "check_activations", "check_counts", "check_shapes", "check_types", "reach"]

MOST = 2**31 - 1  # most values of a tensor, which kernels index with 32 bits


def check_shapes(
    name: str, takes: str, fits: bool, inputs: Mapping[str, Any], *numbers: str
) -> None:
    """Raise if the shapes of an operator's tensors do not fit.

    Args:
        name: Name of the operator.
        takes: Expected tensors and their shapes, in words.
        fits: Whether the shapes fit each other.
        inputs: Arguments of the operator, by name.
        numbers: Names of further arguments that the shapes have to fit, for the message.

    Raises:
        KernelError: The shapes do not fit.
    """
    if not fits:
        given = {key: tuple(value.shape) for key, value in _tensors(inputs).items()}
        also = "".join(f" and {key}={inputs[key]}" for key in numbers)
        raise KernelError(f"{name} takes {takes}; given {given}{also}")


def check_types(
    name: str, taken: Mapping[str, tuple[torch.dtype, ...]], inputs: Mapping[str, Any]
) -> None:
    """Raise if a tensor has a type that the operator does not take.

    Args:
        name: Name of the operator.
        taken: Allowed types by name of a tensor; other tensors must have the type of the first one.
        inputs: Arguments of the operator, by name.

    Raises:
        KernelError: A tensor has another type.
    """
    tensors = _tensors(inputs)
    first = next(iter(tensors.values())).dtype
    for key, value in tensors.items():
        types = dict.fromkeys(taken.get(key, (first,)))
        if value.dtype not in types:
            names = " or ".join(map(dtype_name, types))
            raise KernelError(f"{name} takes {key} in {names}; given {dtype_name(value.dtype)}")


def check_activations(inputs: Mapping[str, Any]) -> None:
    """Raise if an argument whose name ends in "activation" is not the name of an activation.

    Raises:
        KernelError: The name is unknown.
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
    """Raise if a tensor has too many values to be counted in 32 bits.

    The check needs numbers only, so it can come before memory is allocated.

    Args:
        name: Name of the operator.
        batched: Name of the size to reduce for smaller tensors, for the message.
        counts: Number of values of each input, output and workspace, or how far it reaches in
            memory.
        allowed: Largest allowed number.

    Raises:
        KernelError: A tensor is too large.
    """
    most = max(counts, default=0)
    if most > allowed:
        raise KernelError(
            f"{name} takes and returns tensors of at most {allowed:,} values, and one has "
            f"{most:,}; use fewer {batched} at once"
        )


def _tensors(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    return {key: value for key, value in inputs.items() if isinstance(value, Tensor)}
