from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.errors import ConfigError, DataError
from hwnas.predictors.benchmarks.cost_table import read_cost_table

GOOD: dict[str, Any] = {
    "lat_ms": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32),
    "devices": np.array(["a", "b"]),
    "archs": np.zeros((3, 6), np.int8),
}
ENERGY: dict[str, Any] = {
    "archs": GOOD["archs"],
    "energy_mj": np.full((3, 2), 7.0),
    "energy_columns": np.array(["x_cifar", "y_digits"]),
    "lat_ms": np.arange(1.0, 10.0).reshape(3, 3),
    "columns": np.array(["y_digits", "z", "x_cifar"]),
    "rep_arch_idx": np.array([0, 0, 2]),
    "task_accuracy": np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]),
    "task_accuracy_columns": np.array(["cifar", "digits"]),
}


def written(folder: Path, arrays: dict[str, Any]) -> Path:
    path = folder / "table.npz"
    np.savez(path, **arrays)
    return path


def test_cost_table_reads_latencies_of_each_device(tmp_path: Path) -> None:
    table = read_cost_table(written(tmp_path, GOOD))
    assert (table.space.name, table.devices, table.metric) == ("nasbench201", ("a", "b"), "latency")
    assert table.costs[:, table.column("b")].tolist() == [2, 4, 6]
    assert table.latencies_ms is None
    assert table.accuracy_for("a") is None


def test_cost_table_matches_energies_with_latencies_and_accuracies(tmp_path: Path) -> None:
    table = read_cost_table(written(tmp_path, ENERGY), "energy")
    assert table.latencies_ms is not None
    assert table.latencies_ms.tolist() == [[3, 1], [6, 4], [9, 7]]
    assert table.representatives is not None
    accuracy = table.accuracy_for("y_digits")
    assert accuracy is not None
    assert accuracy.tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lat_ms": None}, "no lat_ms"),
        ({"devices": None}, "no lat_ms with devices or columns"),
        ({"archs": None}, "no encoding"),
        ({"archs": np.zeros((2, 6), np.int8)}, "3 rows of costs and 2 of encoding"),
        ({"devices": np.array(["a"])}, "1 names"),
        ({"devices": np.array(["a", "a"])}, "names a more than once"),
        ({"lat_ms": np.array([[1, 2], [3, -4], [5, 6.0]])}, "row 1 on b is -4"),
        ({"lat_ms": np.array([[1, 2], [3, 4], [np.nan, 6.0]])}, "row 2 on a is nan"),
    ],
)
def test_cost_table_refuses_wrong_arrays_with_the_reason(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    arrays = {name: array for name, array in {**GOOD, **change}.items() if array is not None}
    with pytest.raises(DataError, match=message):
        read_cost_table(written(tmp_path, arrays))


def test_cost_table_refuses_files_that_are_not_tables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no table"):
        read_cost_table(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match="file of plain arrays"):
        read_cost_table(tmp_path / "text.npz")
    pickled = {**GOOD, "devices": np.array(["a", None], dtype=object)}
    with pytest.raises(DataError, match="file of plain arrays"):
        read_cost_table(written(tmp_path, pickled))


def test_cost_table_suggests_the_nearest_device_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'x_cifar'"):
        read_cost_table(written(tmp_path, ENERGY), "energy").column("x_cifra")
