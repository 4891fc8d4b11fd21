"""Base class of all search spaces of networks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.search_spaces.cost_model.operator_counts import OperatorCountTable, PartTable, counted
from hwnas.search_spaces.cost_model.workload import Workload, trace
from hwnas.search_spaces.space.architecture import Architecture, Candidate
from hwnas.search_spaces.space.choice_space import ChoiceSpace
from hwnas.search_spaces.supernet.block_specs import BlockSpec
from hwnas.search_spaces.supernet.blueprint import blueprint
from hwnas.search_spaces.tabular import TabularSpace

if TYPE_CHECKING:
    from hwnas.search_spaces.supernet.shared_modules import SharedModuleSource
    from hwnas.search_spaces.supernet.supernet import Supernet

__all__ = ["SearchSpace", "Segments", "StageOutline"]

Segments = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""Used pieces of a tensor: pairs of a dimension and its pieces, which are (start, length) pairs."""


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


class SearchSpace(ChoiceSpace):
    """Set of networks that discrete choices describe.

    A subclass defines `name`, `choices`, `build` and `input_shape`; sampling, encoding, variation,
    counting and weight sharing follow from them. The shared weights of a supernet are those of the
    largest network. ``build`` must therefore name its modules such that the state dict of every
    network has a subset of the largest network's keys, and no tensor is larger than in the largest
    network (`hwnas.search_spaces.supernet.supernet`).

    Attributes:
        pretrained: Whether the largest network starts with trained weights.
        nests: Whether every network's weights are part of the largest network's, so that a supernet
            can share them.
    """

    pretrained: bool = False
    nests: bool = True

    @abstractmethod
    def build(self, architecture: Architecture) -> nn.Module:
        """Return a plain, freshly initialised module: float32 (N, *input_shape) -> (N, outputs)."""

    @abstractmethod
    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return channels, height and width of one input image."""

    def workload(self, architecture: Architecture, batch: int = 1) -> Workload:
        """Return the workload of one network, traced without creating its weights."""
        with blueprint():
            network = self.build(architecture)
        return trace(network, self.input_shape(architecture), batch)

    def segments(self, architecture: Architecture) -> Mapping[str, Segments]:
        """Return the pieces of the largest network's tensors that a network uses.

        Returns:
            Segments by tensor name. Tensors of which the network uses the corner, that is the first
            channels, are left out.
        """
        return {}

    @property
    def places(self) -> tuple[BlockSpec, ...]:
        """Specifications of the blocks of all networks; empty if networks are built as a whole.

        A network is then a frame with a module at each place that is taken. The frame is the same
        for all networks and has no tensors of its own. The places of the largest network are all
        there are. A supernet thus need not build each network anew.
        """
        return ()

    def values(self, architecture: Architecture) -> Mapping[str, Any]:
        """Return the values that decide which modules stand at the `places`.

        They are the options of the architecture and the values derived from them.
        """
        return dict(architecture.values)

    def skeletons(self, shared: Container[str]) -> SharedModuleSource:
        """Return the source of the networks without weights that a supernet runs.

        Args:
            shared: Names of the tensors of the largest network.
        """
        from hwnas.search_spaces.supernet.shared_modules import SharedModules

        return SharedModules(self, shared)

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

    def supernet(self) -> Supernet:
        """Return one module that holds the weights of every network of this space."""
        from hwnas.search_spaces.supernet.supernet import Supernet

        return Supernet(self)

    # Candidates

    @property
    def network(self) -> SearchSpace:
        """Space of the networks: this space, unless it has further roles."""
        return self

    @property
    def roles(self) -> Mapping[str, ChoiceSpace]:
        """Spaces of the further roles of a candidate, by role."""
        return {}

    def candidate(self, architecture: Architecture) -> Candidate:
        """Return the candidate to evaluate for a point of this space."""
        return Candidate.of(architecture)

    def point(self, candidate: Candidate) -> Architecture:
        """Return the point of a candidate; the inverse of `candidate`."""
        return candidate.network

    # Operator counts and costs of many networks

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]] | None:
        """Return the parts that networks consist of, and the part at each place of N networks.

        A space that implements this is searched much faster, because `steps` and `counted` follow
        from it. Their results have to equal a trace of each network, to the last byte.

        Args:
            codes: Indices of options, of shape (N, len(choices)).

        Returns:
            The parts at batch 1 in float32, with batch normalisations as separate operators, and
            the index of the part at each place, of shape (N, places). None if networks have to be
            traced.
        """
        return None

    def steps(self, codes: npt.NDArray[np.int64]) -> OperatorCountTable | None:
        """Return the operator counts of N networks, as ``OperatorCountTable.of_workloads`` does.

        Args:
            codes: Indices of options, of shape (N, len(choices)).

        Returns:
            Table of the N networks; None if the space does not define its `parts`.
        """
        found = self.parts(codes)
        return None if found is None else found[0].deployed.networks(found[1])

    def counted(self, codes: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        """Return the exact costs that follow from the `parts`, each of shape (N,), by name.

        The costs are ``macs``, ``params`` and ``weight_bytes``, as a workload counts them. The
        result is empty if the space does not define its parts.
        """
        found = self.parts(codes)
        return {} if found is None else counted(found[0].networks(found[1]))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Return the depth of each network, of shape (N,).

        The depth is the number of blocks in sequence, or of whatever unit the space defines; None
        if it defines no depth.
        """
        return None

    def published(
        self, codes: npt.NDArray[np.int64]
    ) -> tuple[TabularSpace, npt.NDArray[np.int64]] | None:
        """Return the published space that contains these networks, and their codes in it.

        It is the space of a published table. Data of that space, such as scores that ship with
        hwnas, applies to these networks. The result is None if there is no such table.
        """
        return None
