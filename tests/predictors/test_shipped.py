"""The device profiles that hwnas ships: complete, accurate, consistent with the code."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from hwnas.errors import ArtifactError
from hwnas.predictors import DevicePredictor, Pool, shipped_prior
from hwnas.predictors.devices.shipped import (
    FOLDER,
    _read,
    family,
    prior_of_devices,
    shipped_profiles,
)
from hwnas.predictors.features.blocks import blocks_of_steps
from hwnas.predictors.models.transfer_prior import ConformalScale
from hwnas.search_spaces import OperatorCountTable, mobilenet


def test_shipped_profiles_have_enough_accurate_measurements() -> None:
    profiles = shipped_profiles()
    assert len(profiles) >= 8
    for profile in profiles.values():
        assert len(profile) >= 150
        assert profile.hardware
        assert profile.versions
        assert profile.clock in ("cpu", "wall")
        assert profile.held_out_error is not None
        assert profile.held_out_error < 0.1


def test_shipped_hyperparameters_follow_from_the_shipped_profiles() -> None:
    """Learning one device again gives the shipped values, so both use the same features."""
    profiles, known = [*shipped_profiles().values()], shipped_prior()
    learnt = prior_of_devices(profiles[:1])
    np.testing.assert_allclose(learnt._thetas[0], known.hyperparameters.thetas[0], atol=0.05)


def test_predictor_is_accurate_after_ten_networks_on_a_new_device() -> None:
    """Leave a shipped target out, then calibrate it with ten networks."""
    profiles = shipped_profiles()
    for name in ("cpu-onnxruntime-fp32-b1-t1", "cpu-pytorch-fp32-b1-t1"):
        left_out = profiles[name]
        untouched = DevicePredictor(name, shipped_prior().but([name]))
        pool = Pool((), left_out.steps, blocks_of_steps(left_out.steps))
        rows = np.array(pool.most_informative(untouched, 10))
        adapted = untouched.adapt_steps(left_out.steps.rows(rows), left_out.costs[rows])
        others = np.delete(np.arange(len(left_out)), rows)
        found = np.array([e.mean for e in adapted.predict_steps(left_out.steps.rows(others))])
        assert spearmanr(found, left_out.costs[others]).statistic > 0.95
        assert np.median(np.abs(found / left_out.costs[others] - 1)) < 0.08


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 20])
def test_predictor_adapts_quickly(count: int) -> None:
    space = mobilenet((64, 64, 3), 100)
    pool = Pool.of(space, count=40)
    untouched = DevicePredictor("my-phone", shipped_prior())
    untouched.parts(pool.blocks)  # so that one-time loading is not timed
    rows = np.arange(count)
    start = time.process_time()
    adapted = untouched.adapt_steps(pool.steps.rows(rows), pool.steps.macs[rows] * 1e-7)
    adapted.predict_steps(pool.steps)
    assert time.process_time() - start < 2.0


def test_predictor_returns_no_estimates_for_an_empty_table() -> None:
    predictor = DevicePredictor.load("nowhere", "cpu-onnxruntime-fp32-b1-t1")
    assert predictor.predict_steps(OperatorCountTable.of(())) == []


def test_shipped_hyperparameters_of_other_features_are_refused(tmp_path: Path) -> None:
    """Hyperparameters belong to a set of features, which another version may have changed."""
    copy = shutil.copytree(FOLDER, tmp_path / "devices")
    path = copy / "devices.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "features": found["features"][1:]}))
    with pytest.raises(ArtifactError, match="is of another version of hwnas; install hwnas again"):
        _read(copy)


def test_shipped_hyperparameters_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    """Earlier files have no exponent for doubt, so it has no effect."""
    copy = shutil.copytree(FOLDER, tmp_path / "devices")
    path = copy / "devices.json"
    found = json.loads(path.read_text())
    earlier = {"10": {"factor": 0.9, "exponent": 0.2}}
    path.write_text(json.dumps({**found, "widenings": earlier}))
    _, hyperparameters = _read(copy)
    assert hyperparameters.widening(10) == ConformalScale(0.9, 0.2)


def test_predictor_upper_bounds_hold_without_being_too_wide() -> None:
    """Limits apply to the upper ends of intervals, which are above nineteen in twenty costs.

    Each target of the zoo is new in turn, with its family left out.
    """
    profiles = shipped_profiles()
    kept, widths, errors = [], [], []
    for name in ("cpu-onnxruntime-fp32-b1-t1", "cpu-openvino-fp32-b1-t1", "cpu-pytorch-fp32-b1-t1"):
        new = profiles[name]
        relatives = [other for other in profiles if family(other) == family(name)]
        untouched = DevicePredictor(name, shipped_prior().but(relatives))
        pool = Pool((), new.steps, blocks_of_steps(new.steps))
        rows = np.array(pool.most_informative(untouched, 10))
        adapted = untouched.adapt_steps(new.steps.rows(rows), new.costs[rows])
        others = np.delete(np.arange(len(new)), rows)
        estimates = adapted.predict_steps(new.steps.rows(others))
        costs = new.costs[others]
        kept += [e.interval90[1] >= cost for e, cost in zip(estimates, costs, strict=True)]
        widths.append(np.median([e.interval90[1] / e.mean - 1 for e in estimates]))
        errors.append(
            np.median([abs(e.mean / c - 1) for e, c in zip(estimates, costs, strict=True)])
        )
    assert 0.88 <= np.mean(kept) <= 0.99
    assert np.mean(widths) <= 3.3 * np.mean(errors)
