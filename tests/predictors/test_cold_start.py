from __future__ import annotations

import numpy as np
import pytest

from hwnas.errors import ConfigError
from hwnas.predictors.models.cold_start import ColdStart

NETWORKS = np.random.default_rng(0).uniform(0, 2, (40, 2))
"""Arithmetic and memory traffic of each network."""


def devices(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Descriptions, and log costs that follow from them."""
    rng = np.random.default_rng(seed)
    traits = rng.uniform(0.5, 1.5, (count, 2))
    return traits, NETWORKS @ traits.T


def error(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - true) ** 2)))


def test_cold_start_predicts_costs_from_a_device_description() -> None:
    known, logs = devices(12, 1)
    new, true = devices(3, 2)
    start = ColdStart(known, logs, [str(i) for i in range(12)])
    for description, column in zip(new, true.T, strict=True):
        found, spread = start.predict(description)
        assert error(found, column) < 0.2 * error(logs.mean(1), column)
        assert error(found, column) < 3 * spread


def test_cold_start_predicts_the_mean_from_uninformative_descriptions() -> None:
    _, logs = devices(12, 1)
    noise = np.random.default_rng(3).standard_normal((12, 6))
    start = ColdStart(noise, logs, [str(i) for i in range(12)])
    found, _ = start.predict(np.random.default_rng(4).standard_normal(6))
    np.testing.assert_allclose(found, logs.mean(1), atol=0.15)


def test_cold_start_is_less_certain_if_alike_devices_form_one_family() -> None:
    """Each device occurs twice, so its twin predicts it exactly unless both are one family."""
    _, logs = devices(6, 1)
    twice, numbers = np.repeat(logs, 2, axis=1), np.repeat(np.eye(6), 2, axis=0)
    naive = ColdStart(numbers, twice, [str(i) for i in range(12)])
    honest = ColdStart(numbers, twice, [str(i // 2) for i in range(12)])
    assert naive.predict(numbers[0])[1] < 0.1 * honest.predict(numbers[0])[1]


def test_cold_start_refuses_lists_of_different_lengths() -> None:
    with pytest.raises(ConfigError, match="3 descriptions and 2 families of 2 devices"):
        ColdStart(np.zeros((3, 2)), np.zeros((5, 2)), ["a", "b"])
