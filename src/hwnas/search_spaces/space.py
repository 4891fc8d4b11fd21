"""What every search space can do, given its choices and a way to build a network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.search_spaces.architecture import Architecture, Candidate
from hwnas.search_spaces.blueprint import blueprint
from hwnas.search_spaces.choice_space import ChoiceSpace
from hwnas.search_spaces.places import Place
from hwnas.search_spaces.steps import PartTable, StepTable, counted
from hwnas.search_spaces.tabular import TabularSpace
from hwnas.search_spaces.workload import Workload, trace

if TYPE_CHECKING:
    from hwnas.search_spaces.skeletons import SkeletonSource
    from hwnas.search_spaces.supernet import Supernet

__all__ = ["SearchSpace", "Segments", "StageOutline"]

Segments = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""For dimensions of a tensor, the pieces of it that are used, as pairs of a start and a length."""


@dataclass(frozen=True)
class StageOutline:
    """A row of blocks, for a picture.

    Attributes:
        channels: Output channels.
        stride: Of the first block.
        blocks: Kernel size and expansion ratio of each.
    """

    channels: int
    stride: int
    blocks: tuple[tuple[int, float], ...]


class SearchSpace(ChoiceSpace):
    """A set of networks, described by discrete choices.

    A new space gives `name`, `choices`, `build` and `input_shape`; sampling, encoding, variation,
    counting and weight sharing follow from them. The shared weights of a supernet are those of the
    largest network, so ``build`` must name its parts such that every network's state dict has a
    subset of the keys of the largest network's, with nowhere larger tensors
    (`hwnas.search_spaces.supernet`).

    Attributes:
        pretrained: Whether the largest network begins with trained weights.
        nests: Whether every network's weights are part of the largest network's, so that a supernet
            can share them.
    """

    pretrained: bool = False
    nests: bool = True

    @abstractmethod
    def build(self, architecture: Architecture) -> nn.Module:
        """A plain, freshly initialised module: float32 (N, *input_shape) -> (N, outputs)."""

    @abstractmethod
    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Channels, height and width of one input image."""

    def workload(self, architecture: Architecture, batch: int = 1) -> Workload:
        """What one network asks of hardware, traced without making its weights."""
        with blueprint():
            network = self.build(architecture)
        return trace(network, self.input_shape(architecture), batch)

    def segments(self, architecture: Architecture) -> Mapping[str, Segments]:
        """Where a network's weights lie in those of the largest, if not in the first channels.

        Returns:
            By name of a tensor; those of which a network uses the corner are left out.
        """
        return {}

    @property
    def places(self) -> tuple[Place, ...]:
        """What networks are put together of, so that a supernet need not build each anew.

        A network is then a frame that is the same for all networks, which has no tensors of its
        own, with modules at the places that are taken; those of the largest network are all there
        are. None where networks are built as a whole.
        """
        return ()

    def values(self, architecture: Architecture) -> Mapping[str, Any]:
        """What decides what stands at the `places`: the options, and what follows from them."""
        return dict(architecture.values)

    def skeletons(self, shared: Container[str]) -> SkeletonSource:
        """What a supernet runs: networks of this space without weights.

        Args:
            shared: Names of the tensors of the largest network.
        """
        from hwnas.search_spaces.skeletons import Skeletons

        return Skeletons(self, shared)

    def teacher(self) -> nn.Module | None:
        """The trained network that the weights of this space come from, which others learn from.

        Returns:
            In evaluation mode, without gradients; None where weights start at random.
        """
        return None

    def outline(self, architecture: Architecture) -> tuple[StageOutline, ...]:
        """The stages of a network, for a picture; none where a space has no such thing."""
        return ()

    def supernet(self) -> Supernet:
        """One module that holds the weights of every network of this space."""
        from hwnas.search_spaces.supernet import Supernet

        return Supernet(self)

    # What a search evaluates

    @property
    def network(self) -> SearchSpace:
        """The space of the networks: this one, unless it has further roles."""
        return self

    @property
    def roles(self) -> Mapping[str, ChoiceSpace]:
        """The spaces of the further roles of a candidate."""
        return {}

    def candidate(self, architecture: Architecture) -> Candidate:
        """What to evaluate for a point of this space."""
        return Candidate.of(architecture)

    def point(self, candidate: Candidate) -> Architecture:
        """The inverse of `candidate`."""
        return candidate.network

    # What many networks ask of hardware

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]] | None:
        """What networks are put together of, and which part stands at each place, for N at once.

        A space that gives this is searched much faster: `steps` and `counted` follow from it. They
        have to say what a trace of each network says, to the last byte.

        Args:
            codes: Indices of options, of shape (N, len(choices)).

        Returns:
            The parts at batch 1 in float32, with batch normalisations as steps of their own, and
            what was chosen, of shape (N, places). None where networks have to be traced.
        """
        return None

    def steps(self, codes: npt.NDArray[np.int64]) -> StepTable | None:
        """What N networks ask of hardware, as ``StepTable.of_workloads`` of their workloads.

        Args:
            codes: Indices of options, of shape (N, len(choices)).

        Returns:
            N networks; None where the space does not know its `parts`.
        """
        found = self.parts(codes)
        return None if found is None else found[0].deployed.networks(found[1])

    def counted(self, codes: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        """Costs that follow from the `parts`, exactly, each of shape (N,), by name.

        They are ``macs``, ``params`` and ``weight_bytes``, as a workload counts them; none where
        the space does not know its parts.
        """
        found = self.parts(codes)
        return {} if found is None else counted(found[0].networks(found[1]))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """How many blocks, or whatever a space is deep in, come one after the other, (N,)."""
        return None

    def published(
        self, codes: npt.NDArray[np.int64]
    ) -> tuple[TabularSpace, npt.NDArray[np.int64]] | None:
        """The space of a published table that these networks are in, and their codes there.

        What is known of that space, such as scores that ship with hwnas, holds for them; None where
        there is no such table.
        """
        return None
