"""Residual blocks that keep the shape of their input, so that a network works without them.

A block qualifies if it returns its input plus something, perhaps several times and followed by an
activation, as in ResNet (He et al., CVPR 2016) and in transformers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["ResidualRun", "residual_runs"]

_SUMS = {"add", "add_", "__add__", "__iadd__", "__radd__"}
_BEHIND = {
    "relu", "relu_", "relu6", "silu", "gelu", "hardswish", "leaky_relu", "elu", "mish", "hardtanh",
    "dropout",
}  # fmt: skip


@dataclass(frozen=True)
class ResidualRun:
    """Neighbouring blocks of one parent, of which some may be skipped.

    Attributes:
        name: Name of the parent, or of the first block if the parent is the root or already names
            another run.
        blocks: Names of the blocks, from the one that changes its input most to the one that
            changes it least.
    """

    name: str
    blocks: tuple[str, ...]

    def kept(self, depth: int) -> tuple[str, ...]:
        """Return the blocks that remain at a depth."""
        return self.blocks[:depth]

    def skipped(self, depth: int) -> tuple[str, ...]:
        """Return the blocks that are skipped at a depth."""
        return self.blocks[depth:]

    def depths(self, smallest: float) -> tuple[int, ...]:
        """Return the possible numbers of blocks, increasing.

        They start at the share ``smallest`` of all blocks, rounded down.
        """
        return tuple(range(math.floor(smallest * len(self.blocks)), len(self.blocks) + 1))


@dataclass
class _Call:
    """Call of a module that is still running.

    Attributes:
        given: Copy of the module's input.
        stream: Input, and results of adding something to it.
        summed: Whether anything was added.
    """

    given: Tensor
    stream: list[Tensor] = field(default_factory=list)
    summed: bool = False

    def holds(self, value: Any) -> bool:
        """Return whether a value is the input, perhaps with something added."""
        return any(value is tensor for tensor in self.stream)

    def is_residual(self, output: Any) -> bool:
        """Return whether an output is the input with something added, in the same shape."""
        return self.summed and self.holds(output) and output.shape == self.given.shape


@dataclass(frozen=True)
class _Block:
    name: str
    shape: tuple[int, ...]
    change: float


class _Watch(TorchFunctionMode):
    """Function mode that follows the inputs of all running modules through sums and activations."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call | None] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if isinstance(result, Tensor) and (name in _SUMS or name in _BEHIND):
            for call in self.calls:
                if call is not None and any(call.holds(value) for value in args):
                    call.summed |= name in _SUMS
                    if call.summed:
                        call.stream.append(result)
        return result


def residual_runs(network: nn.Module, example: Tensor) -> tuple[ResidualRun, ...]:
    """Return the residual blocks of a network that may be skipped, innermost ones only.

    Blocks of a run are skipped in the order of how little they change their input on the example,
    relative to its norm (block influence, Men et al., "ShortGPT", 2024, with the norm of the change
    in place of the cosine).

    Args:
        network: Network in evaluation mode.
        example: Input (N, C, H, W).
    """
    found, called = _watched(network, example)
    once = [block for block in found if called[block.name] == 1]
    names = {block.name for block in once}
    innermost = [b for b in once if not any(n.startswith(f"{b.name}.") for n in names)]
    runs: list[ResidualRun] = []
    for (parent, _), members in groupby(innermost, lambda b: (_parent(b.name), b.shape)):
        blocks = list(members)
        by_change = sorted(blocks, key=lambda block: -block.change)
        taken = {run.name for run in runs}
        name = blocks[0].name if not parent or parent in taken else parent
        runs.append(ResidualRun(name, tuple(block.name for block in by_change)))
    return tuple(runs)


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _watched(network: nn.Module, example: Tensor) -> tuple[list[_Block], dict[str, int]]:
    """Return residual calls in the order in which they ended, and the number of calls by module."""
    watch, called = _Watch(), defaultdict[str, int](int)
    found: list[_Block] = []

    def before(module: nn.Module, args: tuple[Any, ...]) -> None:
        single = len(args) == 1 and isinstance(args[0], Tensor)
        # A copy, since a block may work in place.
        watch.calls.append(_Call(args[0].detach().clone(), [args[0]]) if single else None)

    def after(name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            call = watch.calls.pop()
            called[name] += 1
            if call is not None and call.is_residual(output):
                change = (output.detach() - call.given).norm() / call.given.norm().clamp_min(1e-12)
                found.append(_Block(name, tuple(output.shape), float(change)))

        return note

    handles = []
    for name, module in network.named_modules():
        if name and any(True for _ in module.children()) and any(True for _ in module.parameters()):
            handles.append(module.register_forward_pre_hook(before))
            handles.append(module.register_forward_hook(after(name)))
    try:
        with torch.no_grad(), watch:
            network(example)
    finally:
        for handle in handles:
            handle.remove()
    return found, called
