"""Steps of a fused chain, each in Triton and in PyTorch, and their operands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "ChainStep",
    "Named",
    "Operand",
    "Reduction",
    "floating",
    "named_operands",
    "reference_of",
    "stored_dtype",
]


@dataclass(frozen=True)
class Operand:
    """Operand of a step, beside the value that goes through the chain.

    Attributes:
        name: Name in the step's expression.
        per: Granularity: one number for each ``value`` (N, ..., C), for each channel of each
            ``image`` (N, C), for each ``channel`` (C,), or a single ``number``.
        typical: Typical value; random examples of tensors lie around it.
    """

    name: str
    per: str
    typical: float = 0.0


@dataclass(frozen=True)
class Reduction:
    """Reduction of the pixels of an image to one, as expressions in Triton.

    Attributes:
        start: Initial value of ``total``, a block of pixels and channels.
        joined: Next value of ``total``, computed from it and from ``v`` where ``inside`` holds.
        collapsed: ``total`` reduced to one row, (1, channels).
    """

    start: str
    joined: str
    collapsed: str


@dataclass(frozen=True)
class ChainStep:
    """Step of a fused chain.

    Attributes:
        name: Name of the function that makes its pieces.
        expression: Triton expression of the next ``v``, float32, in terms of ``v``, operands in
            braces, the mask ``inside``, ``pixels`` and ``CHANNELS``. For a reduction it is applied
            to the result.
        reference: The same in PyTorch, as a function of v, (N, ..., C) in float32 or float64, and
            operands.
        operands: Operands in the order in which the reference takes them.
        place: Position in a chain: ``first``, ``middle``, ``rows`` (in the middle, for a step that
            needs all channels of a pixel), ``reduction`` or ``last``, in this order.
        reduction: Reduction if the step is one, else None.
        gives: Type in which the result is stored; None if the type of the chain's input decides.
    """

    name: str
    expression: str
    reference: Callable[..., Tensor]
    operands: tuple[Operand, ...] = ()
    place: str = "middle"
    reduction: Reduction | None = None
    gives: torch.dtype | None = None


Named = Mapping[str, tuple[int, Operand]]  # by name in the kernel: position of the step, operand


def named_operands(steps: tuple[ChainStep, ...]) -> Named:
    """Return each operand with the position of its step, by the operand's name in the kernel."""
    return {
        f"{operand.name}_{place}": (place, operand)
        for place, step in enumerate(steps)
        for operand in step.operands
    }


def floating(dtype: torch.dtype) -> torch.dtype:
    """Return the floating type that goes with the type of x: float32 for integers."""
    return dtype if dtype.is_floating_point else torch.float32


def stored_dtype(steps: tuple[ChainStep, ...], dtype: torch.dtype) -> torch.dtype:
    """Return the type of the result for the type of x."""
    return steps[-1].gives or floating(dtype)


def reference_of(steps: tuple[ChainStep, ...]) -> Callable[..., Tensor]:
    """Return a function with the operator's signature that applies the references of all steps."""
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
    """Return an operand in a shape that PyTorch broadcasts over the pixels."""
    return value.reshape(len(v), *(1,) * (v.dim() - 2), -1) if operand.per == "image" else value
