"""Tensors of a network that a linear map of their channels changes together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.quantization.float_graph import LinearLayer

__all__ = ["AddedConstant", "Ids", "MappedChannels", "Port"]

Ids = NDArray[np.int32]
"""Number of the channel of each element of a tensor."""


@dataclass(frozen=True, eq=False)
class Port:
    """Layer that writes or reads tensors whose channels are mapped.

    Attributes:
        layer: The layer.
        ids: Channel of each of the layer's outputs or inputs, (C,).
        sign: 1 if the map itself applies, -1 if the inverse of its transpose does.
    """

    layer: LinearLayer
    ids: Ids
    sign: int


@dataclass(frozen=True, eq=False)
class AddedConstant:
    """Constant that is added to a mapped tensor, or that multiplies a LayerNorm's output.

    Attributes:
        name: Name of the constant.
        ids: Channel of each of its elements.
        sign: As for a port.
    """

    name: str
    ids: Ids
    sign: int


@dataclass(eq=False)
class MappedChannels:
    """Tensors whose channels can be mapped, and all that has to change with them.

    Attributes:
        size: Number of channels C.
        tensors: Channel numbers of each tensor.
        signs: Sign of each tensor, as for a port.
        writers: Layers that write the tensors.
        readers: Layers that read them.
        added: Constants that are added to them.
        norms: Names of the scales of the LayerNorms that a rotation has to pass.
        blocks: Channels that a rotation may mix with each other, each (n,); all of them if empty.
    """

    size: int
    tensors: dict[str, Ids] = field(default_factory=dict)
    signs: dict[str, int] = field(default_factory=dict)
    writers: list[Port] = field(default_factory=list)
    readers: list[Port] = field(default_factory=list)
    added: list[AddedConstant] = field(default_factory=list)
    norms: list[str] = field(default_factory=list)
    blocks: list[Ids] = field(default_factory=list)
