"""Training step of a scheme, compiled ahead: operators in order, and what is kept for the backward.

Only operators that the gradients of the scheme need are left. So nothing is computed below the
first trained layer, and the input of a layer is kept only if its weight is trained, in part if the
weight is trained in part. Values are freed after the last operator that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hwnas.deploy.finetuning.joint_graph import JointGraph, replaced
from hwnas.deploy.finetuning.memory import StepMemory
from hwnas.deploy.finetuning.scheme import TrainedTensor

__all__ = ["ProgramStep", "SavedValue", "TrainingProgram"]

Values = dict[int, Any]
"""Values that exist, by number: tensors, or tuples of them."""
Watch = Callable[[Mapping[int, Any]], None]


@dataclass(frozen=True)
class ProgramStep:
    """Operator of a program.

    Attributes:
        name: Name of the operator.
        function: Function that computes its value.
        arguments: Positional and named arguments, with `ValueOf` in place of values.
        reads: Numbers of the values that it reads.
        number: Number of its value.
        pieces: Pieces of memory that its value lies in.
        frees: Numbers of the values that nothing reads afterwards.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, Any]
    reads: tuple[int, ...]
    number: int
    pieces: tuple[int, ...]
    frees: tuple[int, ...] = ()


@dataclass(frozen=True)
class SavedValue:
    """Value that is kept from the forward to the backward pass.

    Attributes:
        operator: Name of the operator that computes it.
        shape: Its shape.
        kept_as: ``"as it is"``; ``"32 bits"``, ``"4 bits"`` or ``"1 bit"`` an element; ``"shape"``
            if nothing else is kept; ``"view"`` if its memory is that of another value;
            ``"recomputed"`` if it is not kept.
        memory_bytes: Bytes that are kept.
    """

    operator: str
    shape: tuple[int, ...]
    kept_as: str
    memory_bytes: int


@dataclass(frozen=True, eq=False)
class TrainingProgram:
    """Training step of a scheme for batches of one size.

    Attributes:
        graph: Graph that it is a part of.
        tensors: Tensors that are trained, with the numbers of their gradients.
        forward_steps: Operators up to the loss.
        backward_steps: Operators from the loss to the gradients.
        saved: Values that are kept between the two.
        memory: Predicted memory of the step.
    """

    graph: JointGraph
    tensors: Mapping[TrainedTensor, int]
    forward_steps: tuple[ProgramStep, ...]
    backward_steps: tuple[ProgramStep, ...]
    saved: tuple[SavedValue, ...]
    memory: StepMemory

    @torch.no_grad()
    def forward(
        self,
        parameters: Mapping[str, Tensor],
        images: Tensor,
        targets: Tensor,
        watch: Watch | None = None,
    ) -> tuple[Tensor, Values]:
        """Return the loss, and the values that the backward pass reads, by number.

        Args:
            parameters: Parameters and buffers of the network by name.
            images: Inputs of the network, (batch, *input_shape).
            targets: Classes, int64 (batch,).
            watch: Function that gets all values after each operator, before any is freed.
        """
        graph = self.graph
        fixed = {graph.parameters[name]: tensor for name, tensor in parameters.items()}
        # With one channel, images with channels last count as contiguous, unlike in the graph.
        plain = images.contiguous().flatten().view(images.shape)
        values: Values = {**fixed, graph.images: plain, graph.targets: targets}
        _run(self.forward_steps, values, watch)
        return values[graph.loss], values

    @torch.no_grad()
    def backward(self, values: Values, watch: Watch | None = None) -> dict[TrainedTensor, Tensor]:
        """Return the gradient of each trained tensor.

        Args:
            values: Values that `forward` returned; they are freed on the way.
            watch: Function that gets all values after each operator, before any is freed.
        """
        _run(self.backward_steps, values, watch)
        return {tensor: values[number] for tensor, number in self.tensors.items()}


def _run(steps: Sequence[ProgramStep], values: Values, watch: Watch | None) -> None:
    for step in steps:
        args, kwargs = replaced(step.arguments, values.__getitem__)
        values[step.number] = step.function(*args, **kwargs)
        del args, kwargs
        if watch is not None:
            watch(values)
        for number in step.frees:
            del values[number]
