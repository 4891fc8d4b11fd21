"""Default method: a Gaussian process on log cost, with parts that transfer and parts that do not.

The kernel is a sum of parts: linear ones in the predictions for other devices (their mean and the
differences between them, which span the same functions as their principal components), linear ones
in physical features and in counts of options, and small radial parts of both. The weights of the
parts have a prior that is learnt by predicting each known device from those of other families.
Transfer therefore switches itself off if devices have little in common: the prior then gives it a
small weight, and a few measurements that contradict it make the weight smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, single
from scipy.spatial.distance import pdist

from hwnas.predictors.estimate import NORMAL_90
from hwnas.predictors.features.blocks import Blocks, blocks_of_codes, rows_of
from hwnas.predictors.models.coverage import adapted, learn_widening
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.methods import Encoder, Forecast, KnownDevices, Measure, Rows
from hwnas.predictors.models.transfer_prior import (
    ConformalScale,
    DeviceDataset,
    Networks,
    TransferPrior,
    scale_of,
)

__all__ = ["Transfer", "transfer", "transfer_of"]

_ALIKE = 0.95


def transfer(sources: KnownDevices) -> Transfer:
    """Learn from the devices of a table, with networks described by aggregated features."""
    return transfer_of(sources, _aggregated)


def _aggregated(sources: KnownDevices) -> Blocks:
    return blocks_of_codes(sources.space, sources.codes)


def transfer_of(sources: KnownDevices, encoder: Encoder) -> Transfer:
    """Learn from the devices of a table, with networks described by an encoder."""
    blocks = encoder(sources)
    pool = rows_of(blocks, sources.pool)
    columns = [*np.log(sources.costs).T]
    names = list(sources.devices)
    if sources.latencies_ms is not None:
        for name, column in zip(sources.devices, sources.latencies_ms.T, strict=True):
            if np.isfinite(column).all():
                columns.append(np.log(column))
                names.append(f"latency of {name}")
    families = _families(names, np.array(columns))
    connected = sources.space.connected(sources.codes)
    known = tuple(
        DeviceDataset(name, pool, column, family, connected[sources.pool])
        for name, column, family in zip(names, columns, families, strict=True)
    )
    transfer_prior = TransferPrior(known, pool)
    return Transfer(transfer_prior, transfer_prior.see(blocks), connected)


def _families(names: Sequence[str], logs: Numbers) -> list[str]:
    """Return families of devices whose log costs correlate by over 0.95, directly or via others."""
    if len(names) < 2:
        return [*names]
    apart = pdist(logs, "correlation")
    return [f"family {label}" for label in fcluster(single(apart), 1 - _ALIKE, "distance")]


@dataclass(frozen=True)
class Transfer:
    """Default method after it has learnt from the known devices.

    Attributes:
        transfer_prior: Transfer prior from the known devices.
        networks: All N networks of the table.
        connected: Whether each network's output depends on its input, of shape (N,). Other networks
            may be folded to nothing, so no measurement is spent on them.
        widenings: Scales of intervals computed so far, by the number of samples; None where they
            cannot be learnt from the known devices.
    """

    transfer_prior: TransferPrior
    networks: Networks
    connected: npt.NDArray[np.bool_]
    widenings: dict[int, ConformalScale | None] = field(default_factory=dict)

    def predict(
        self,
        offered: Rows,
        queries: Rows,
        samples: int,
        measure: Measure,
        rng: np.random.Generator,
    ) -> Forecast:
        """Measure the most informative of the offered rows, then predict the queries."""
        transfer_prior = self.transfer_prior
        alive = offered[self.connected[offered]]
        offered = alive if len(alive) >= samples else offered
        seen = transfer_prior.parts(self.networks)
        process = adapted(
            seen, transfer_prior.prior, offered, samples, lambda row: math.log(measure(row).cost)
        )
        mean, std = process.predict(seen.rows(queries))
        if samples not in self.widenings:
            self.widenings[samples] = learn_widening(transfer_prior, samples)
        reach = NORMAL_90 * scale_of(self.widenings[samples], process) * std
        return Forecast(np.exp(mean), np.exp(mean - reach), np.exp(mean + reach))
