"""Fusion of a chain of small pieces into one generated kernel.

``fuse(batch_norm(layer), relu(), add(), quantize(0.05))`` is called with x, and with each tensor
that a piece was not given. `hwnas.kernels.codegen.pieces` has all pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from hwnas.errors import KernelError
from hwnas.kernels.codegen.chain import Chain, chain_of
from hwnas.kernels.codegen.pieces import BoundStep
from hwnas.kernels.codegen.steps import ChainStep
from hwnas.kernels.launch import Launch
from hwnas.kernels.operator import Config

__all__ = ["Fused", "fuse"]


@dataclass(frozen=True, eq=False)
class Fused:
    """Chain with the tensors and numbers that its pieces were given.

    Attributes:
        chain: Operator that takes all operands at the call; it can be verified and tuned.
        pieces: Pieces in their order.
    """

    chain: Chain
    pieces: tuple[BoundStep, ...]

    @property
    def source(self) -> str:
        """Triton source of the module with the kernels."""
        return self.chain.source

    def __call__(self, x: Tensor, *given: Tensor) -> Tensor:
        """Compute the chain.

        If kernels cannot run, the reference computes it, and a warning says so once.

        Args:
            x: Input, (N, ..., C), such as (N, H, W, C) for feature maps.
            given: Tensors that the pieces were not given, in the order of the steps.

        Returns:
            Output, (N, ..., C), or (N, C) if the pixels are reduced. Its type is that of x, or
            float32 if x is int8, unless the chain ends with `quantize` or `cast`.

        Raises:
            KernelError: Tensors are missing or too many, or have the wrong shape or type.
        """
        y: Tensor = self.chain(*self._arguments(x, given))
        return y

    def reference(self, x: Tensor, *given: Tensor) -> Tensor:
        """Compute the same in plain PyTorch, by the references of the pieces."""
        y: Tensor = self.chain.reference(*self._arguments(x, given))
        return y

    def launches(self, x: Tensor, *given: Tensor, config: Config | None = None) -> Sequence[Launch]:
        """Return the launches of a call, with new outputs; see `__call__`.

        Args:
            x: Input, contiguous like the other tensors.
            given: Tensors that the pieces were not given.
            config: Configuration of the kernels; the default one if None.
        """
        inputs = self.chain.bound(*self._arguments(x, given))
        config = config or self.chain.default_config(self.chain.sizes(inputs), x.dtype)
        return self.chain.launches(inputs, self.chain.outputs(inputs), config)

    def _arguments(self, x: Tensor, given: Sequence[Tensor]) -> list[Any]:
        """Return all arguments of the operator, in its order."""
        missing = [
            f"{operand.name} of step {place} ({piece.step.name})"
            for place, piece in enumerate(self.pieces)
            for operand, value in zip(piece.step.operands, piece.values, strict=True)
            if value is None
        ]
        if len(given) != len(missing):
            raise KernelError(
                f"besides x, the chain takes {', '.join(missing) or 'nothing'}; given {len(given)} "
                "more tensors. Tensors that never change can be given to their pieces"
            )
        left = iter(given)
        values = [value for piece in self.pieces for value in piece.values]
        return [x, *(next(left) if value is None else value for value in values)]


def fuse(*pieces: BoundStep) -> Fused:
    """Make one kernel of some pieces, which are computed in this order.

    A chain can begin with `dequantize`, continue with any pieces that keep the pixels, and end with
    one that reduces them. A final `quantize` or `cast` says how the result is stored. The same
    steps always have the same kernel, whatever their numbers and tensors are.

    Raises:
        KernelError: The pieces do not fit together.
    """
    if not pieces:
        raise KernelError("a chain needs at least one piece; see hwnas.kernels.codegen.pieces")
    for place, piece in enumerate(pieces):
        if not isinstance(piece, BoundStep):
            raise KernelError(f"step {place} is {piece!r}, not a piece; call it, as in `relu()`")
    steps = tuple(piece.step for piece in pieces)
    for place, (step, follower) in enumerate(pairwise(steps)):
        if why := _unfit(step, follower):
            raise KernelError(
                f"step {place + 1} ({follower.name}) cannot come after step {place} "
                f"({step.name}): {why}"
            )
    return Fused(chain_of(steps), pieces)


def _unfit(step: ChainStep, follower: ChainStep) -> str | None:
    """Return why a step cannot follow another, or None if it can."""
    if follower.place == "first":
        return "it takes int8, and only the input of a chain can be int8"
    if step.place == "last":
        return "the step before it rounds the result for storage, and has to be the last one"
    if step.reduction and follower.place != "last":
        return "the step before it reduces the pixels, and only quantize or cast can follow"
    return None
