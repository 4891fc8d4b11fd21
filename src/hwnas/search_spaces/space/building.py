"""Capability of a space to build its networks, and to share weights among them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.supernet.block_specs import BlockSpec

__all__ = ["NetworkBuilder", "Segments", "StageOutline"]

Segments = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""Used segments of a tensor: a dimension, and the (start, length) pairs of its segments."""


@dataclass(frozen=True)
class StageOutline:
    """Row of blocks, for drawing a network.

    Attributes:
        channels: Output channels.
        stride: Stride of the first block.
        blocks: Kernel size and expansion ratio of each block.
    """

    channels: int
    stride: int
    blocks: tuple[tuple[int, float], ...]


class NetworkBuilder(ABC):
    """Part of a search space that builds networks, and shares weights among them.

    The shared weights of a supernet are those of one network, which is the largest unless the space
    says otherwise (`SearchSpace.shared_network`). ``build`` must therefore name its modules such
    that the state dict of every network has a subset of that network's keys, and no tensor is
    larger than there (`hwnas.search_spaces.supernet.supernet`).

    Attributes:
        pretrained: Whether the largest network starts with trained weights.
        nests: Whether every network's weights are part of the shared network's, so that a supernet
            can share them.
        traceable: Whether a trace of one run of a network has the same ONNX operators as its
            program, whatever the batch; its files are then exported by tracing, which takes a
            fraction of the time.
    """

    pretrained: bool = False
    nests: bool = True
    traceable: bool = False

    @abstractmethod
    def build(self, architecture: Architecture) -> nn.Module:
        """Return a plain, freshly initialised module: float32 (N, *input_shape) -> (N, outputs)."""

    @abstractmethod
    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return channels, height and width of one input image."""

    def segments(self, architecture: Architecture) -> Mapping[str, Segments]:
        """Return the segments of the shared network's tensors that a network uses.

        Returns:
            Segments by tensor name. Tensors of which the network uses the corner, that is the first
            channels, are left out.
        """
        return {}

    @property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Specifications of the blocks of all networks; empty if networks are built as a whole.

        A network is then a frame with the modules of its blocks. The frame is the same for all
        networks and has no tensors of its own. The largest network has all blocks. A supernet
        thus need not build each network anew.
        """
        return ()

    def values(self, architecture: Architecture) -> Mapping[str, Any]:
        """Return the values that decide the modules of the `block_specs`.

        They are the options of the architecture and the values derived from them.
        """
        return dict(architecture.values)

    def teacher(self) -> nn.Module | None:
        """Return the trained network that the weights of this space come from.

        Other networks learn from it.

        Returns:
            The network in evaluation mode, without gradients; None if weights start at random.
        """
        return None

    def outline(self, architecture: Architecture) -> tuple[StageOutline, ...]:
        """Return the stages of a network, for drawing; empty if the space has no stages."""
        return ()
