"""Predicted costs of networks with an early exit, as means over images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hwnas.deploy.targets.target import Target
from hwnas.predictors.estimate import CostSource, Estimate
from hwnas.search_spaces import Workload
from hwnas.search_spaces.early_exit.workload import EarlyExitWorkload

__all__ = ["expected_costs", "mean_cost"]

_OF_WHOLE_NETWORKS = ("peak_memory_bytes",)
"""Metrics that a network has once, whether or not images leave early."""


def expected_costs(
    source: CostSource, workloads: Sequence[Workload], targets: Sequence[Target]
) -> list[Estimate]:
    """Return the costs of networks; with an early exit, the mean over the images.

    A batch skips the rest of a network if all of its images leave, which are taken as independent.
    The errors of both predictions are taken as fully dependent, since they come from one predictor
    and similar networks; so the deviation of the mean is at most that.

    Args:
        source: Source of the costs of networks without an exit.
        workloads: Networks.
        targets: Target of each network.

    Returns:
        An estimate for each pair of workload and target.
    """
    found = list(source.cost(workloads, targets))
    pairs = zip(found, workloads, targets, strict=True)
    leaving = [
        (i, workload, target)
        for i, (estimate, workload, target) in enumerate(pairs)
        if isinstance(workload, EarlyExitWorkload) and estimate.metric not in _OF_WHOLE_NETWORKS
    ]
    if not leaving:
        return found
    parts = source.cost([w.until_exit for _, w, _ in leaving], [t for *_, t in leaving])
    for (i, workload, target), part in zip(leaving, parts, strict=True):
        found[i] = mean_cost(part, found[i], workload.share**target.device.batch)
    return found


def mean_cost(part: Estimate, whole: Estimate, share: float) -> Estimate:
    """Return the mean of the costs of batches that leave early and of those that do not.

    Args:
        part: Cost of the network up to its exit.
        whole: Cost of the whole network.
        share: Share of batches that leave early, in [0, 1].
    """
    return replace(
        whole,
        mean=share * part.mean + (1 - share) * whole.mean,
        std=share * part.std + (1 - share) * whole.std,
    )
