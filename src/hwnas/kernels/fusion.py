"""Chains of small pieces in one kernel that nobody wrote by hand.

``fuse(batch_norm(layer), relu(), add(), quantize(0.05))`` is called with x, and with a tensor for
each that a piece was not given. See `hwnas.kernels.pieces` for what there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from hwnas.errors import KernelError
from hwnas.kernels.chain import Chain, chain_of
from hwnas.kernels.launch import Launch
from hwnas.kernels.operator import Config
from hwnas.kernels.pieces import Piece
from hwnas.kernels.steps import Step

__all__ = ["Fused", "fuse"]


@dataclass(frozen=True, eq=False)
class Fused:
    """A chain and what its pieces were given.

    Attributes:
        chain: The operator, which takes everything at the call: what can be verified and tuned.
        pieces: In their order.
    """

    chain: Chain
    pieces: tuple[Piece, ...]

    @property
    def source(self) -> str:
        """Of the module with the kernels, in Triton."""
        return self.chain.source

    def __call__(self, x: Tensor, *given: Tensor) -> Tensor:
        """Compute it.

        Where kernels cannot be run the reference computes it, and a warning says so once.

        Args:
            x: (N, ..., C), as (N, H, W, C) for feature maps.
            given: Tensors that the pieces were not given, in the order of the steps.

        Returns:
            (N, ..., C), or (N, C) where the pixels are reduced; of the type of x, unless the chain
            ends with `quantize` or `cast`; of float32 if x is int8.

        Raises:
            KernelError: Tensors are missing or too many, or have the wrong shape or type.
        """
        y: Tensor = self.chain(*self._arguments(x, given))
        return y

    def reference(self, x: Tensor, *given: Tensor) -> Tensor:
        """The same in plain PyTorch, by the references of the pieces."""
        y: Tensor = self.chain.reference(*self._arguments(x, given))
        return y

    def launches(self, x: Tensor, *given: Tensor, config: Config | None = None) -> Sequence[Launch]:
        """The kernels that it would start, with new outputs; see `__call__`.

        Args:
            x: Contiguous, like the others.
            given: Tensors that the pieces were not given.
            config: The default one if None.
        """
        inputs = self.chain.bound(*self._arguments(x, given))
        config = config or self.chain.default_config(self.chain.sizes(inputs), x.dtype)
        return self.chain.launches(inputs, self.chain.outputs(inputs), config)

    def _arguments(self, x: Tensor, given: Sequence[Tensor]) -> list[Any]:
        """All that the operator takes, in its order."""
        missing = [
            f"{operand.name} of step {place} ({piece.step.name})"
            for place, piece in enumerate(self.pieces)
            for operand, value in zip(piece.step.operands, piece.values, strict=True)
            if value is None
        ]
        if len(given) != len(missing):
            raise KernelError(
                f"beside x the chain takes {', '.join(missing) or 'nothing'}; given {len(given)} "
                "tensors more. What a step always has can be given to its piece"
            )
        left = iter(given)
        values = [value for piece in self.pieces for value in piece.values]
        return [x, *(next(left) if value is None else value for value in values)]


def fuse(*pieces: Piece) -> Fused:
    """Make one kernel of some pieces, which are done in this order.

    A chain can begin with `dequantize`, can then have any pieces that keep the pixels, can end with
    one that reduces them, and at the very end says with `quantize` or `cast` how the result is
    stored. The same steps always have the same kernel, whatever their numbers and tensors are.

    Raises:
        KernelError: The pieces do not fit together.
    """
    if not pieces:
        raise KernelError("a chain needs a piece; see hwnas.kernels.pieces")
    for place, piece in enumerate(pieces):
        if not isinstance(piece, Piece):
            raise KernelError(f"step {place} is no piece but {piece!r}; call it, as in `relu()`")
    steps = tuple(piece.step for piece in pieces)
    for place, (step, follower) in enumerate(pairwise(steps)):
        if why := _unfit(step, follower):
            raise KernelError(
                f"step {place + 1} ({follower.name}) cannot come after step {place} "
                f"({step.name}): {why}"
            )
    return Fused(chain_of(steps), pieces)


def _unfit(step: Step, follower: Step) -> str | None:
    """Why a step cannot follow another."""
    if follower.place == "first":
        return "it takes int8, which only the input of a chain can be"
    if step.place == "last":
        return "what comes before it is rounded to be stored, so that has to be the last step"
    if step.reduction and follower.place != "last":
        return "the pixels are reduced there, after which only quantize or cast can come"
    return None
