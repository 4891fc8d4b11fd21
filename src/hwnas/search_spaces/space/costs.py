"""Capability of a space to count the costs of its networks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.cost_model.operator_counts import OperatorCountTable, PartTable, counted
from hwnas.search_spaces.cost_model.workload import Workload, trace
from hwnas.search_spaces.layers.branches import merged_branches
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.building import NetworkBuilder
from hwnas.search_spaces.supernet.blueprint import blueprint
from hwnas.search_spaces.tabular import TabularSpace

__all__ = ["NetworkCosts"]


class NetworkCosts(NetworkBuilder):
    """Part of a search space that counts operators and costs, of one network or of many at once."""

    def workload(self, architecture: Architecture, batch: int = 1) -> Workload:
        """Return the workload of one network, traced without creating its weights."""
        with blueprint():
            network = merged_branches(self.build(architecture))
        return trace(network, self.input_shape(architecture), batch)

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
