"""Ranges of activation values that eight bits represent: all values, or the range with least error.

Outliers make the steps between all other values coarse, and clipping them costs accuracy, too.
Which effect is worse depends on the network, so several methods are offered, to be compared by the
outputs of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import onnx

__all__ = ["RANGES", "Activation", "Range", "activations"]

Range = tuple[float, float]
"""Smallest and largest value that is represented; 0 is always between them."""

_SAMPLED_VALUES = 2**18
_BINS = 2048
_STEPS = 255
# With 1, each step before a hard sigmoid would end halfway between two steps after it.
_WIDER = 1.01
_SHARES = np.linspace(1.0, 0.1, 46)


@dataclass(frozen=True)
class Activation:
    """Values of one tensor of a network on some images.

    Attributes:
        least: Smallest value.
        most: Largest value.
        sample: Some of the values, float32 of shape (N,).
    """

    least: float
    most: float
    sample: NDArray[np.float32]

    def full(self) -> Range:
        """Return the range of all values."""
        return min(self.least, 0.0), max(self.most, 0.0)

    @cached_property
    def _histogram(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Numbers of sampled values in the bins that have any, and the middles of these bins."""
        least, most = self.full()
        bins = (self.sample.astype(float) - least) * (_BINS / (most - least))
        counts = np.bincount(np.minimum(bins.astype(int), _BINS - 1), minlength=_BINS)
        edges = np.linspace(least, most, _BINS + 1)
        return counts[counts > 0], (edges[1:] + edges[:-1])[counts > 0] / 2

    def fitted(self, power: float) -> Range:
        """Return the range with the least mean error |value - rounded value| ** power.

        A power of 2 gives the squared error of Nagel et al., "A White Paper on Neural Network
        Quantization" (2021), equation 11. A lower power gives the many small values more weight
        against the few large ones.
        """
        least, most = self.full()
        if least == most:
            return least, most
        counts, middles = self._histogram

        def errors(low: ArrayLike, high: ArrayLike) -> NDArray[np.float64]:
            rounded = _rounded(middles, np.reshape(low, (-1, 1)), np.reshape(high, (-1, 1)))
            return np.asarray(np.abs(rounded - middles) ** power @ counts)

        low, high = least, most
        for _ in range(2):  # one end after the other, as they hardly depend on each other
            if least:
                low = least * float(_SHARES[errors(least * _SHARES, high).argmin()])
            before = high
            if most:
                high = most * float(_SHARES[errors(low, most * _SHARES).argmin()])
            if high == before:  # the other end was fitted to this one
                break
        return low, high


RANGES: Mapping[str, Callable[[Activation], Range]] = {
    "full": Activation.full,
    "least squares": lambda activation: activation.fitted(2.0),
    "least absolute": lambda activation: activation.fitted(1.0),
}
"""Methods to choose a range, by name."""


def activations(
    model: Path, batches: Sequence[NDArray[np.float32]]
) -> tuple[dict[str, Activation], NDArray[np.float32]]:
    """Return the values of all float32 tensors of a network that are not weights, and its output.

    Values that the next operator does not distinguish, as a hard swish maps all values below -3 to
    0, are clipped to the nearest value that it does distinguish.

    Args:
        model: ONNX file with one float32 input and inferred shapes.
        batches: Inputs (N, ...).

    Returns:
        The values by the name of the tensor, and the network's first output for all inputs.

    Raises:
        ValueError: A value is NaN or infinite, or values are too far apart for 32 bits.
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
    outputs = []
    for batch in batches:
        values = dict(zip(names, session.run(None, {source: batch}), strict=True))
        outputs.append(values[names[0]])
        for name, value in {source: batch, **values}.items():
            within = value.ravel()
            if name in limits:
                within = np.clip(within, *limits[name])
            every = max(1, within.size * len(batches) // _SAMPLED_VALUES)
            seen = Activation(float(within.min()), float(within.max()), within[::every].copy())
            if not np.isfinite(seen.most - seen.least):
                raise ValueError(f"values of {name} are NaN, infinite or too large")
            parts.setdefault(name, []).append(seen)
    return {name: _together(seen) for name, seen in parts.items()}, np.concatenate(outputs)


def _told_apart(graph: onnx.GraphProto) -> dict[str, Range]:
    """Return the range of values that matter to a hard sigmoid or hard swish, by input tensor."""
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


def _rounded(
    values: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return values as eight bits represent them, in each of several ranges (R, 1)."""
    step = (high - low) / _STEPS
    zero = np.round(-low / step)
    level = np.clip(np.round(values / step) + zero, 0, _STEPS)
    return np.asarray((level - zero) * step)
