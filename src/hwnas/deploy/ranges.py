"""Which range of an activation's values eight bits stand for: all of it, or the part that counts.

A few far values make the steps between all others coarse, and clipping them costs accuracy, too.
Which is worse depends on the network, so several ways are offered, to be compared by what comes
out of the network in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx

__all__ = ["RANGES", "Activation", "Range", "activations"]

Range = tuple[float, float]
"""Least and largest value that is represented; 0 is always between them."""

_SAMPLED_VALUES = 2**18
_BINS = 2048
_STEPS = 255
# Were it 1, each step before a hard sigmoid would end halfway between two steps behind it.
_WIDER = 1.01
_SHARES = np.linspace(1.0, 0.1, 46)


@dataclass(frozen=True)
class Activation:
    """The values of one tensor of a network on some images.

    Attributes:
        least: Of all values.
        most: Of all values.
        sample: Some of them, float32 of shape (N,).
    """

    least: float
    most: float
    sample: NDArray[np.float32]

    def full(self) -> Range:
        """All values."""
        return min(self.least, 0.0), max(self.most, 0.0)

    def fitted(self, power: float) -> Range:
        """The range with the least mean error |value - rounded value| ** power.

        With a power of 2 it is the squared error of Nagel et al., "A White Paper on Neural Network
        Quantization" (2021), equation 11; a lower one minds the many small values more than the few
        large ones.
        """
        low, high = self.full()
        if low == high:
            return low, high
        counts, edges = np.histogram(self.sample, _BINS, (low, high))
        middles = (edges[1:] + edges[:-1]) / 2

        def error(range_: Range) -> float:
            return float(counts @ np.abs(_rounded(middles, range_) - middles) ** power)

        found = low, high
        for _ in range(2):  # one end after the other, as they hardly depend on each other
            found = min(((low * share, found[1]) for share in _SHARES), key=error)
            found = min(((found[0], high * share) for share in _SHARES), key=error)
        return found


RANGES: Mapping[str, Callable[[Activation], Range]] = {
    "full": Activation.full,
    "least squares": lambda activation: activation.fitted(2.0),
    "least absolute": lambda activation: activation.fitted(1.0),
}
"""Ways to choose a range, by name."""


def activations(model: Path, batches: Sequence[NDArray[np.float32]]) -> dict[str, Activation]:
    """The values of all float32 tensors of a network that are not weights, by name.

    What the next operator makes the same of, as a hard swish does of all that is below -3, counts
    as the nearest value that it tells apart.

    Args:
        model: An ONNX file with one float32 input, its shapes inferred.
        batches: Inputs (N, ...).
    """
    import onnx
    from onnxruntime import InferenceSession

    network = onnx.load(model)
    source, limits = network.graph.input[0].name, _told_apart(network.graph)
    made = {name for node in network.graph.node for name in node.output}
    inner = made - {output.name for output in network.graph.output}
    network.graph.output.extend(
        info
        for info in network.graph.value_info
        if info.name in inner and info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    )
    session = InferenceSession(network.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    parts: dict[str, list[Activation]] = {}
    for batch in batches:
        values = dict(zip(names, session.run(None, {source: batch}), strict=True))
        for name, value in {source: batch, **values}.items():
            within = np.clip(value.ravel(), *limits.get(name, (None, None)))
            every = max(1, within.size * len(batches) // _SAMPLED_VALUES)
            seen = Activation(float(within.min()), float(within.max()), within[::every].copy())
            parts.setdefault(name, []).append(seen)
    return {name: _together(seen) for name, seen in parts.items()}


def _told_apart(graph: onnx.GraphProto) -> dict[str, Range]:
    """Of tensors that end in a hard sigmoid, or a hard swish, the values that make a difference."""
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            users.setdefault(name, []).append(node)
    found = {}
    for name, nodes in users.items():
        gates = [node for node in nodes if node.op_type == "HardSigmoid"]
        others = [node for node in nodes if node.op_type != "HardSigmoid"]
        if len(gates) == 1:
            given = {attribute.name: attribute.f for attribute in gates[0].attribute}
            slope, offset = given.get("alpha", 0.2), given.get("beta", 0.5)
            low, high = -_WIDER * offset / slope, _WIDER * (1 - offset) / slope
            if not others:
                found[name] = low, high
            elif all(n.op_type == "Mul" and gates[0].output[0] in n.input for n in others):
                found[name] = low, np.inf
    return found


def _together(parts: Sequence[Activation]) -> Activation:
    return Activation(
        min(part.least for part in parts),
        max(part.most for part in parts),
        np.concatenate([part.sample for part in parts]),
    )


def _rounded(values: NDArray[np.float64], range_: Range) -> NDArray[np.float64]:
    """Values as eight bits represent them."""
    low, high = range_
    step = (high - low) / _STEPS
    zero = np.round(-low / step)
    level = np.clip(np.round(values / step) + zero, 0, _STEPS)
    return np.asarray((level - zero) * step)
