"""Removal of copies of tensors around normalisations, for which the order of values is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hwnas.deploy.microcontroller.axes import IntegerPermutation
from hwnas.deploy.microcontroller.network import IntegerStep
from hwnas.deploy.microcontroller.normalisation import IntegerGroupNorm

__all__ = ["readers_of", "without_needless_copies"]


def readers_of(steps: Sequence[IntegerStep], output: int) -> dict[int, int]:
    """Return how often each tensor is read; the output of the network once more."""
    readers = {output: 1}
    for step in steps:
        for tensor in step.inputs:
            readers[tensor] = readers.get(tensor, 0) + 1
    return readers


def without_needless_copies(steps: Sequence[IntegerStep], output: int) -> list[IntegerStep]:
    """Return steps in which a normalisation of a whole map works in the order of the map.

    A file stores channels first, and so normalises a copy in that order, and copies the result
    back. One mean and one variance of all values do not depend on their order.

    Args:
        steps: Steps in order.
        output: Output of the network.
    """
    readers = readers_of(steps, output)
    kept = list(steps)
    for step in steps:
        if isinstance(step.operator, IntegerGroupNorm) and len(step.operator.gamma) == 1:
            before = next((each for each in kept if each.output == step.inputs[0]), None)
            after = next((each for each in kept if step.output in each.inputs), None)
            if before is not None and after is not None and _cancel(before, step, after, readers):
                kept[kept.index(step)] = replace(step, inputs=before.inputs, output=after.output)
                kept.remove(before)
                kept.remove(after)
    return kept


def _cancel(
    before: IntegerStep, step: IntegerStep, after: IntegerStep, readers: Mapping[int, int]
) -> bool:
    """Return whether two copies, of which a step alone is between, give the order before both."""
    copies = before.operator, after.operator
    if readers[before.output] != 1 or readers[step.output] != 1:
        return False
    if not all(isinstance(each, IntegerPermutation) for each in copies):
        return False
    first, second = (each.places for each in copies if isinstance(each, IntegerPermutation))
    return first.size == second.size and bool((first[second] == np.arange(first.size)).all())
