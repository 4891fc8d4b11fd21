"""What a fused chain is made of: steps, each in Triton and in PyTorch, and what they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "Named",
    "Operand",
    "Reduction",
    "Step",
    "floating",
    "named_operands",
    "reference_of",
    "stored_dtype",
]


@dataclass(frozen=True)
class Operand:
    """What a step takes beside the value that goes through the chain.

    Attributes:
        name: In its expression.
        per: One for each ``value`` (N, ..., C), for each channel of each ``image`` (N, C), for each
            ``channel`` (C,), or a single ``number``.
        typical: A value; random examples of tensors lie around it.
    """

    name: str
    per: str
    typical: float = 0.0


@dataclass(frozen=True)
class Reduction:
    """How the pixels of an image become one, in Triton.

    Attributes:
        start: Of ``total``, a block of pixels and channels.
        joined: The next ``total``, of it and ``v`` where that is ``inside``.
        collapsed: ``total`` with one line only, (1, channels).
    """

    start: str
    joined: str
    collapsed: str


@dataclass(frozen=True)
class Step:
    """What is done with a value.

    Attributes:
        name: Of the function that makes its pieces.
        expression: The next ``v`` in Triton, float32: of ``v``, operands in braces, the mask
            ``inside``, ``pixels`` and ``CHANNELS``. Of a reduction it is what comes after it.
        reference: The same in PyTorch: takes v, (N, ..., C) in float32 or float64, and operands.
        operands: In the order in which the reference takes them.
        place: ``first``, ``middle``, ``rows`` (in the middle, and needs all channels of a pixel),
            ``reduction`` or ``last``, which is their order in a chain.
        reduction: Of a reduction only.
        gives: Type in which the result is stored; None where the chain's input decides.
    """

    name: str
    expression: str
    reference: Callable[..., Tensor]
    operands: tuple[Operand, ...] = ()
    place: str = "middle"
    reduction: Reduction | None = None
    gives: torch.dtype | None = None


Named = Mapping[str, tuple[int, Operand]]  # by name in the kernel: place of the step, operand


def named_operands(steps: tuple[Step, ...]) -> Named:
    """By its name in the kernel each operand, and the place of its step."""
    return {
        f"{operand.name}_{place}": (place, operand)
        for place, step in enumerate(steps)
        for operand in step.operands
    }


def floating(dtype: torch.dtype) -> torch.dtype:
    """The floating type that goes with that of x."""
    return dtype if dtype.is_floating_point else torch.float32


def stored_dtype(steps: tuple[Step, ...], dtype: torch.dtype) -> torch.dtype:
    """Type of the result where x is of this one."""
    return steps[-1].gives or floating(dtype)


def reference_of(steps: tuple[Step, ...]) -> Callable[..., Tensor]:
    """The references of the steps one after the other, with the signature of the operator."""
    named = named_operands(steps)
    kinds = {"x": Tensor} | {
        name: float if operand.per == "number" else Tensor for name, (_, operand) in named.items()
    }
    signature = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
            for name, kind in kinds.items()
        ],
        return_annotation=Tensor,
    )

    def reference(*args: Any, **kwargs: Any) -> Tensor:
        inputs = signature.bind(*args, **kwargs).arguments
        x = inputs["x"]
        v: Tensor = x if x.dtype == torch.float64 else x.float()
        for place, step in enumerate(steps):
            operands = [
                _spread(inputs[name], operand, v)
                for name, (where, operand) in named.items()
                if where == place
            ]
            v = step.reference(v, *operands)
        return v.to(stored_dtype(steps, x.dtype))

    reference.__signature__ = signature  # type: ignore[attr-defined]
    return reference


def _spread(value: Any, operand: Operand, v: Tensor) -> Any:
    """An operand so that PyTorch repeats it over the pixels."""
    return value.reshape(len(v), *(1,) * (v.dim() - 2), -1) if operand.per == "image" else value
