"""Fixtures: a small table of accuracies and costs in the format of published ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with accuracies and costs of all 64 networks: 3 positions of 4 options."""
    choice = np.indices((4, 4, 4)).reshape(3, -1).T
    worth = np.array([[0, 4, 7, 9], [0, 2, 3, 3.5], [0, 5, 6, 6.2]])
    accuracy = 60 + sum(worth[i][choice[:, i]] for i in range(3)) + 0.1 * np.sin(17 * choice[:, 0])
    base = 1 + choice @ np.array([1.0, 0.5, 2.0])
    scale = np.array([1.0, 3.0, 0.7, 1.5])
    costs = base[:, None] * scale + 0.05 * np.cos(choice @ np.array([1, 2, 3]))[:, None]
    np.savez(
        tmp_path / "acc.npz",
        val=accuracy,
        test=accuracy + 0.3 * np.cos(3 * choice[:, 1]),
        both=np.column_stack([accuracy, -accuracy]),
        words=np.array(["a"] * 64),
        broken=np.where(np.arange(64) == 5, np.nan, accuracy),
        fewer=accuracy[:60],
    )
    np.savez(
        tmp_path / "lat.npz",
        choice=choice,
        lat_ms=costs,
        devices=np.array(["phone", "slow_phone", "laptop", "fpga"]),
        macs=base,
    )
    return tmp_path
