from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hwnas.errors import ConfigError, DataError
from hwnas.search.evolution.scores import checked_scores

CPU = torch.device("cpu")


@pytest.mark.parametrize("make", [np.array, torch.tensor, list])
def test_checked_scores_accepts_numpy_torch_and_lists(make: Any) -> None:
    losses, violations = [[1, 2], [3, 4], [5, 6]], [[0, -1], [1, 2], [-3, 0.5]]
    found = checked_scores((make(losses), make(violations)), 3, CPU)
    assert found.losses.dtype == found.violations.dtype == torch.float64
    assert found.losses.tolist() == losses
    assert found.violations.tolist() == [0, 3, 0.5]
    assert checked_scores(make(losses), 3, CPU).violations.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (np.zeros(3), ConfigError, r"losses of shape \(3,\); expected \(3, objectives\)"),
        (np.zeros((2, 2)), ConfigError, r"losses of shape \(2, 2\)"),
        (np.zeros((3, 1)), ConfigError, "1 objectives; expected 2 or more"),
        ([[1, 2], [np.nan, 0], [np.inf, 1]], DataError, "not finite for 2 of 3"),
        ((np.zeros((3, 2)), np.zeros(2)), ConfigError, r"violations of shape \(2,\)"),
        ((np.zeros((3, 2)), np.full(3, np.nan)), DataError, "violation that is not a number"),
    ],
)
def test_checked_scores_refuses_invalid_scores(
    given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        checked_scores(given, 3, CPU)
