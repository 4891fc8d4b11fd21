"""Workload of a network whose layers have number formats of their own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.cost_model.workload import Workload, trace
from hwnas.search_spaces.layers.quantisers import FLOAT_BITS, LayerPrecision
from hwnas.search_spaces.quantised.attached import quantisable

__all__ = ["QuantisedWorkload", "quantised_workload"]

_WEIGHTED = ("conv", "pointwise", "depthwise", "linear", "matmul")


@dataclass(frozen=True)
class QuantisedWorkload(Workload):
    """Workload of a network with few bits; tensors and operators are those in single precision.

    Predictors of latency therefore see the network as the runtime of a whole number format does.

    Attributes:
        saved_bits: Bits of all weights in single precision, less those that they are stored in.
        saved_operations: BitOPs in single precision, less those of the network; products with
            pruned weights have none.
    """

    saved_bits: int = 0
    saved_operations: int = 0

    @property
    def weight_bytes(self) -> int:
        """Size of all weights that operators read, packed, without their scales, in bytes.

        Pruned weights are not stored; the positions of the others are.
        """
        return super().weight_bytes - self.saved_bits // 8

    @property
    def bit_operations(self) -> int:
        """Multiply-accumulates of one inference, each times the bits of both factors (BitOPs)."""
        return super().bit_operations - self.saved_operations


def quantised_workload(
    network: nn.Module,
    input_shape: tuple[int, int, int],
    batch: int,
    precision_of: Callable[[str], LayerPrecision],
) -> QuantisedWorkload:
    """Return the workload of a network whose layers have few bits.

    Args:
        network: Network without quantisers.
        input_shape: Channels, height and width.
        batch: Images at once.
        precision_of: Function from a layer's name to its number format.

    Raises:
        ConfigError: A layer does not compute as one operator.
    """
    with _called(network) as names:
        found = trace(network, input_shape, batch)
    weights = {tensor.id for tensor in found.tensors if tensor.role == "weight"}
    users = [
        operator
        for operator in found.operators
        if operator.kind in _WEIGHTED and weights.intersection(operator.inputs)
    ]
    if len(users) != len(names):
        raise ConfigError(
            f"{type(network).__name__} uses weights in {len(users)} operators but has "
            f"{len(names)} calls of layers; quantise a model of convolutions and linear layers"
        )
    saved_bits = saved_operations = 0
    for name, operator in zip(names, users, strict=True):
        precision = precision_of(name)
        # Of the tensors that a layer reads, its weight has several dimensions, its bias has one.
        [shape] = [
            found.tensors[number].shape
            for number in weights.intersection(operator.inputs)
            if len(found.tensors[number].shape) > 1
        ]
        saved_bits += math.prod(shape) * FLOAT_BITS - precision.stored_bits(shape)
        bits = precision.weight_bits * precision.activation_bits
        saved_operations += operator.macs * FLOAT_BITS**2
        saved_operations -= round(operator.macs * precision.density(shape)) * bits
    return QuantisedWorkload(
        *(found.operators, found.tensors, found.outputs, found.params),
        saved_bits,
        saved_operations,
    )


@contextlib.contextmanager
def _called(network: nn.Module) -> Iterator[list[str]]:
    """Context that yields a list of the layers with weights, in the order in which they run."""
    names: list[str] = []
    handles = [
        layer.register_forward_pre_hook(lambda _module, _inputs, name=name: names.append(name))
        for name, layer in quantisable(network)
    ]
    try:
        yield names
    finally:
        for handle in handles:
            handle.remove()
