from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hwnas.errors import ConfigError, DataError, HwnasError
from hwnas.search.tables import read_objective_table, read_test_table


def test_objective_table_combines_several_files(files: Path) -> None:
    table = read_objective_table([f"{files}/acc.npz:val:max", f"{files}/lat.npz:lat_ms[fpga]:min"])
    assert table.codes.shape == (64, 3)
    assert [column.label for column in table.columns] == ["val", "lat_ms[fpga]"]
    assert (table.losses[:, 0] < -59).all()
    assert (table.losses[:, 1] > 0).all()
    assert table.is_grid


@pytest.mark.parametrize("column", ["[laptop]", ":laptop", ":2", "[2]"])
def test_objective_table_selects_a_column_by_name_or_number(files: Path, column: str) -> None:
    table = read_objective_table([f"{files}/lat.npz:lat_ms{column}:min"])
    assert np.array_equal(table.columns[0].values, np.load(files / "lat.npz")["lat_ms"][:, 2])


def test_test_table_replaces_the_matching_objective(files: Path) -> None:
    table = read_objective_table([f"{files}/acc.npz:val:max", f"{files}/lat.npz:macs:min"])
    test = read_test_table(table, [f"{files}/acc.npz:test:max"])
    assert [column.array for column in test.columns] == ["test", "macs"]


def test_objective_table_with_missing_rows_is_no_grid(files: Path) -> None:
    whole = dict(np.load(files / "lat.npz"))
    kept = np.delete(np.arange(64), [3, 30])
    np.savez(files / "some.npz", choice=whole["choice"][kept], macs=whole["macs"][kept])
    assert not read_objective_table([f"{files}/some.npz:macs:min"]).is_grid


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("acc.npz", ConfigError, r"expected FILE:ARRAY\[:COLUMN\]:max or :min"),
        ("acc.npz:val", ConfigError, "expected FILE:ARRAY"),
        ("acc.npz:val:least", ConfigError, "expected FILE:ARRAY"),
        ("acc.npz:vall:max", ConfigError, "no array 'vall'; did you mean 'val'"),
        ("none.npz:val:max", DataError, "there is no table"),
        ("acc.npz:words:max", ConfigError, "expected numbers"),
        ("acc.npz:val:3:max", ConfigError, "has one column only"),
        ("acc.npz:both:max", ConfigError, "has 2 columns; name one"),
        ("acc.npz:both:2:max", ConfigError, "no column '2'"),
        ("acc.npz:broken:max", DataError, "of row 5 is nan"),
        ("lat.npz:lat_ms:min", ConfigError, r"such as lat_ms\[phone\]"),
        ("lat.npz:lat_ms[phon]:min", ConfigError, "did you mean 'phone'"),
    ],
)
def test_objective_table_refuses_invalid_columns(
    files: Path, text: str, error: type[HwnasError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_objective_table([f"{files}/{text}", f"{files}/lat.npz:macs:min"])


def test_objective_table_refuses_files_of_other_networks(files: Path) -> None:
    with pytest.raises(DataError, match="has 60 rows, but there are 64 networks"):
        read_objective_table([f"{files}/acc.npz:fewer:max", f"{files}/lat.npz:macs:min"])
    with pytest.raises(DataError, match="has an encoding"):
        read_objective_table([f"{files}/acc.npz:val:max"])
    table = read_objective_table([f"{files}/lat.npz:macs:min"])
    with pytest.raises(DataError, match="60 rows"):
        read_test_table(table, [f"{files}/acc.npz:fewer:max"])
    with pytest.raises(ConfigError, match="has no objective of --table to replace"):
        read_test_table(table, [f"{files}/acc.npz:val:max"])
    with pytest.raises(ConfigError, match="appears twice"):
        read_objective_table([f"{files}/lat.npz:macs:min"] * 2)
