"""Base class of all search spaces of networks."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from hwnas.search_spaces.cost_model.operator_counts import OperatorCountTable
from hwnas.search_spaces.space.architecture import Architecture, Candidate
from hwnas.search_spaces.space.choice_space import ChoiceSpace
from hwnas.search_spaces.space.costs import NetworkCosts

if TYPE_CHECKING:
    from hwnas.search_spaces.supernet.shared_modules import SharedModuleSource
    from hwnas.search_spaces.supernet.supernet import Supernet

__all__ = ["SearchSpace"]


class SearchSpace(ChoiceSpace, NetworkCosts):
    """Set of networks that discrete choices describe.

    A subclass defines `name`, `choices`, `build` and `input_shape`. Sampling, encoding and
    variation follow from the choices (`ChoiceSpace`), costs from the networks (`NetworkCosts`), and
    a supernet from both; `NetworkBuilder` says how it shares weights.
    """

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

    def operator_counts(self, networks: Sequence[Architecture]) -> OperatorCountTable:
        """Return the operator counts of networks as deployed, at batch 1.

        They follow from the `parts`; without these, each network is traced.
        """
        codes = [self.encode(network) for network in networks]
        shape = len(networks), len(self.choices)
        table = self.steps(np.array(codes, dtype=np.int64).reshape(shape))
        if table is None:
            table = OperatorCountTable.of_workloads([self.workload(each) for each in networks])
        return table

    def shared_network(self) -> nn.Module:
        """Return a module whose state contains the weights of every network.

        It is the largest network, unless a choice selects among operators with weights of their
        own: then it also has all other operators.
        """
        return self.build(self.largest())

    def shared_modules(self, shared: Container[str]) -> SharedModuleSource:
        """Return the source of the networks without weights that a supernet runs.

        Args:
            shared: Names of the tensors of the shared network.
        """
        from hwnas.search_spaces.supernet.shared_modules import SharedModules

        return SharedModules(self, shared)

    def supernet(self) -> Supernet:
        """Return one module that holds the weights of every network of this space."""
        from hwnas.search_spaces.supernet.supernet import Supernet

        return Supernet(self)
