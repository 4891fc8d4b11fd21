"""The steps of a part of a network, from a trace of that part alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from torch import nn

from hwnas.search_spaces.blueprint import blueprint
from hwnas.search_spaces.steps import Step
from hwnas.search_spaces.workload import trace

__all__ = ["traced_steps"]


def traced_steps(make: Callable[[], nn.Module], input_shape: tuple[int, ...]) -> Counter[Step]:
    """What a module adds to a network that it is a part of, at batch 1.

    A network is the sum of its parts where each takes one contiguous tensor and gives one.

    Args:
        make: Makes the module; it is never given weights.
        input_shape: Of what it takes, without the batch.
    """
    with blueprint():
        module = make()
    workload = trace(module, input_shape)
    return Counter(Step.of(operator, workload) for operator in workload.operators)
