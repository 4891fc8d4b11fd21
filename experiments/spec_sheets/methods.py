"""Methods that predict costs on a device from its spec sheet and from known devices.

Shapes: K known devices, E new ones (one hardware at several batches), D numbers of a description,
N known networks, M asked ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.spec_sheets.group_attention import predict_by_attention
from hwnas.predictors.models.cold_start import ColdStart
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.nearest_devices import NearestDevices
from hwnas.search_spaces import OperatorCountTable

__all__ = ["GROUPS", "METHODS", "Case", "Method", "roofline_logs"]

GROUPS = (3, 2, 2)
"""Sizes of NCPP's groups in a description: cores, clock and peak rate are of the processor;
bandwidth and cache of the memory; launch time and batch of the system."""


@dataclass(frozen=True, eq=False)
class Case:
    """New devices, and all that is known before anything is measured on them.

    Attributes:
        known: Descriptions of the known devices, of shape (K, D).
        families: Hardware of each known device.
        new: Descriptions of the new devices, of shape (E, D).
        logs: Log costs on the known devices of the known and asked networks, (N, K) and (M, K).
        networks: Features of the known and asked networks, of shape (N, F) and (M, F).
        rooflines: Log roofline times of the known networks on the known devices, and of the asked
            networks on the new devices, (N, K) and (M, E).
    """

    known: Numbers
    families: Sequence[str]
    new: Numbers
    logs: tuple[Numbers, Numbers]
    networks: tuple[Numbers, Numbers]
    rooflines: tuple[Numbers, Numbers]


Method = Callable[[Case, int], Numbers]
"""Function of a case and a seed that returns log costs of the asked networks, of shape (M, E)."""


def linear_mix(case: Case, seed: int) -> Numbers:
    """Mix all known devices by a kernel that is linear in the descriptions."""
    start = ColdStart(case.known, case.logs[0], case.families)
    return case.logs[1] @ np.array([start.weights(each) for each in case.new]).T


def nearest(count: int) -> Method:
    """Return the method that mixes the nearest known devices."""

    def method(case: Case, seed: int) -> Numbers:
        known = NearestDevices(case.known, count)
        return case.logs[1] @ np.array([known.weights(each) for each in case.new]).T

    return method


def mean_of_known(case: Case, seed: int) -> Numbers:
    """Ignore the description."""
    return np.repeat(case.logs[1].mean(1, keepdims=True), len(case.new), 1)


def roofline(case: Case, seed: int) -> Numbers:
    """Return the time in the roofline model, times the efficiency that known devices have."""
    known, new = case.rooflines
    return new + float(np.median(case.logs[0] - known))


def group_attention(case: Case, seed: int) -> Numbers:
    """Train a network with attention within and across groups of numbers on the known devices."""
    return predict_by_attention(case.known, GROUPS, case.new, case.networks, case.logs, seed)


METHODS: dict[str, Method] = {
    "nearest-3": nearest(3),
    "nearest-1": nearest(1),
    "linear-mix": linear_mix,
    "group-attention": group_attention,
    "roofline": roofline,
    "mean": mean_of_known,
}


def roofline_logs(steps: OperatorCountTable, description: Numbers) -> Numbers:
    """Return the log milliseconds of networks in the roofline model (Williams et al., CACM 2009).

    Args:
        steps: Operator counts of N networks.
        description: Logarithms of cores, clock (GHz), peak rate (1e9 operations per second),
            bandwidth (1e9 bytes per second), cache (MB), time to start an operator (us) and
            images in a batch.
    """
    _, _, gflops, gbytes, _, launch_us, batch = np.exp(description)
    times = []
    for step in steps.steps:
        folded = step.kind in ("view", "norm") or step.dead
        busy = batch * max(2 * step.macs / gflops, step.bytes_moved / gbytes) * 1e-6
        times.append(0.0 if folded else 1e-3 * launch_us + busy)
    found: Numbers = np.log(steps.total(np.array(times)[:, None])[:, 0])
    return found
