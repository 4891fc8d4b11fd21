"""Operator counts of a part of a network, from a trace of that part alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from torch import nn

from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature
from hwnas.search_spaces.cost_model.workload import trace
from hwnas.search_spaces.supernet.blueprint import blueprint

__all__ = ["traced_steps"]


def traced_steps(
    make: Callable[[], nn.Module], input_shape: tuple[int, ...]
) -> Counter[OperatorSignature]:
    """Return the operator counts that a module adds to a network it is part of, at batch 1.

    The counts of a network are the sum of its parts' counts if each part takes one contiguous
    tensor and returns one.

    Args:
        make: Function that makes the module; the module never has weights.
        input_shape: Shape of the module's input, without the batch.
    """
    with blueprint():
        module = make()
    workload = trace(module, input_shape)
    return Counter(OperatorSignature.of(operator, workload) for operator in workload.operators)
