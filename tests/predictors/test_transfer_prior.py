from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from hwnas.predictors.benchmarks.cost_table import CostTable
from hwnas.predictors.features.blocks import BlockScaling, blocks_of_codes, rows_of
from hwnas.predictors.models.gaussian_process import Mixture
from hwnas.predictors.models.transfer_prior import DeviceDataset, TransferPrior

POOL = np.arange(150)


def transfer_prior(table: CostTable, devices: list[str], shuffled: bool = False) -> TransferPrior:
    blocks = rows_of(blocks_of_codes(table.space, table.codes), POOL)
    rng = np.random.default_rng(0)
    sources = []
    for device in devices:
        logs = np.log(table.costs[POOL, table.column(device)])
        sources.append(DeviceDataset(device, blocks, rng.permutation(logs) if shuffled else logs))
    return TransferPrior(tuple(sources), blocks)


def predicted(table: CostTable, known: TransferPrior, device: str, samples: int) -> np.ndarray:
    blocks = blocks_of_codes(table.space, table.codes)
    parts = known.parts(known.see(blocks))
    rows = np.random.default_rng(1).choice(POOL, samples, replace=False)
    logs = np.log(table.costs[rows, table.column(device)])
    return Mixture.fitted(parts.rows(rows), logs, known.prior).predict(parts.rows(range(150, 600)))[
        0
    ]


def ranking(table: CostTable, found: np.ndarray, device: str) -> float:
    true = table.costs[150:, table.column(device)]
    return float(spearmanr(found, true).statistic)


def test_transfer_prior_improves_ranking_with_related_devices(table: CostTable) -> None:
    """All devices share per-operator factors that no physical feature contains."""
    places = blocks_of_codes(table.space, table.codes)["places"]
    likes = np.exp(places @ np.random.default_rng(0).normal(0, 0.2, places.shape[1]))
    liked = replace(table, costs=table.costs * likes[:, None])
    alone = predicted(liked, transfer_prior(liked, []), "server", 6)
    taught = predicted(liked, transfer_prior(liked, ["slow", "core", "gpu", "chip"]), "server", 6)
    assert ranking(liked, taught, "server") > 0.9
    assert ranking(liked, taught, "server") > ranking(liked, alone, "server") + 0.1


@pytest.mark.slow
def test_transfer_prior_is_not_harmed_by_unrelated_devices(table: CostTable) -> None:
    """Costs of the other devices are shuffled, so they hold no information."""
    alone = predicted(table, transfer_prior(table, []), "server", 20)
    devices = ["slow", "core", "gpu", "chip"]
    misled = predicted(table, transfer_prior(table, devices, shuffled=True), "server", 20)
    assert ranking(table, misled, "server") > 0.9
    assert ranking(table, misled, "server") > ranking(table, alone, "server") - 0.05


def test_transfer_prior_features_ignore_a_device_that_is_left_out(table: CostTable) -> None:
    known = transfer_prior(table, ["slow", "core", "gpu"])
    networks = known.see(rows_of(blocks_of_codes(table.space, table.codes), POOL))
    without = known.parts(networks, known.others(1))
    other = transfer_prior(table, ["slow", "gpu"])
    again = other.parts(other.see(rows_of(blocks_of_codes(table.space, table.codes), POOL)))
    for name, features in without.linear.items():
        np.testing.assert_allclose(features, again.linear[name], atol=1e-9)


@pytest.mark.slow
def test_transfer_prior_leaves_out_a_whole_family(table: CostTable) -> None:
    """A twin of the device would give information that a new device does not have."""
    known = transfer_prior(table, ["slow", "core", "gpu", "chip"])
    first, *rest = known.sources
    twin = replace(first, name="twin", logs=first.logs + 0.1)
    apart = TransferPrior((first, twin, *rest), known.reference)
    related = tuple(replace(source, family="slow") for source in (first, twin))
    together = TransferPrior((*related, *rest), known.reference)
    assert apart.others(0) == [1, 2, 3, 4]
    assert together.others(0) == together.others(1) == [2, 3, 4]
    place = together.parts(together.see(known.reference)).names.index("differences")
    assert together.prior.mean[place] != apart.prior.mean[place]


def test_transfer_prior_features_commute_with_row_selection(table: CostTable) -> None:
    known = transfer_prior(table, ["slow", "core", "gpu"])
    blocks = blocks_of_codes(table.space, table.codes)
    some = np.array([5, 2, 300])
    before = known.parts(known.see(rows_of(blocks, some)))
    after = known.parts(known.see(blocks)).rows(some)
    for name, features in before.linear.items():
        np.testing.assert_allclose(features, after.linear[name], atol=1e-9)


def test_block_scaling_equalises_columns_and_drops_constants() -> None:
    block = np.array([[1.0, 10.0, 7.0], [3.0, 30.0, 7.0], [5.0, 20.0, 7.0]])
    scaled = BlockScaling.over(block)(block)
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-12)
    assert (scaled**2).sum(1).mean() == pytest.approx(1.0)
    assert scaled[:, 0].std() == pytest.approx(scaled[:, 1].std())
    assert not scaled[:, 2].any()
    raw = BlockScaling.over(block, whiten=False)(block)
    assert (raw**2).sum(1).mean() == pytest.approx(1.0)
    assert raw[:, 1].std() / raw[:, 0].std() == pytest.approx(block[:, 1].std() / block[:, 0].std())
    assert math.isclose(float(raw[:, 2].sum()), 0.0)
