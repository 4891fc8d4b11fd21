"""Advice on channel counts that are inefficient in `hwnas.kernels`, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hwnas.kernels.tuning.friendly import (
    BLOCK,
    LOAD_BYTES,
    friendly_channels,
    idle_products,
    load_bytes,
)
from hwnas.search_spaces import Workload
from hwnas.search_spaces.cost_model.workload import NetworkOperator

__all__ = ["advice"]

_MATTERS = 0.1
_NAMED = 4
_LAYERS = ("conv", "depthwise", "linear", "pointwise")


def advice(workload: Workload, itemsize: int) -> list[str]:
    """Return messages on channels that waste loads or multiplications, with better channel counts.

    The list is empty if no channels waste any.

    Args:
        workload: Workload of the network, at any batch.
        itemsize: Bytes of one value in the network's number format.
    """
    narrow: Counter[int] = Counter()
    made = idle = 0.0
    for operator, inputs, outputs in _layers(workload):
        inside = operator.outputs[0] not in workload.outputs
        if inside and load_bytes(outputs, itemsize) < LOAD_BYTES:
            narrow[outputs] += 1
        if operator.kind in ("linear", "pointwise"):
            useful = 1 - idle_products(inputs, outputs)
            made += operator.macs / useful
            idle += operator.macs / useful - operator.macs
    found = []
    if narrow:
        named = sorted(narrow, key=lambda channels: (-narrow[channels], channels))[:_NAMED]
        better = "; ".join(f"{c}: {_choices(c)}" for c in named)
        found.append(
            f"channel counts of {sum(narrow.values())} feature maps do not allow loads of "
            f"{LOAD_BYTES} bytes; other counts would ({better})"
        )
    if idle > _MATTERS * made:
        found.append(
            f"{idle / made:.0%} of the multiplications in pointwise layers are with zeros of "
            f"padding; multiples of {BLOCK} channels need no padding"
        )
    return found


def _choices(channels: int) -> str:
    return " or ".join(map(str, dict.fromkeys(friendly_channels(channels))))


def _layers(workload: Workload) -> Iterator[tuple[NetworkOperator, int, int]]:
    """Yield the layers that have weights, with their input and output channels."""
    for operator in workload.operators:
        if operator.dead or operator.kind not in _LAYERS:
            continue
        tensors = [workload.tensors[i] for i in operator.inputs]
        axis = -1 if operator.kind == "linear" else 1
        out = workload.tensors[operator.outputs[0]].shape
        maps = [t.shape for t in tensors if t.role != "weight" and len(t.shape) == len(out)]
        if maps:
            yield operator, maps[0][axis], out[axis]
