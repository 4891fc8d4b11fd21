from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest

from hwnas.errors import RunError
from hwnas.stages import Job
from hwnas.stages.measurements import read_measurements, write_measurements


@pytest.fixture
def table(job: Job) -> Path:
    return job.folder.path / "measurements.parquet"


def test_measurements_survive_a_round_trip(table: Path, tmp_path: Path) -> None:
    rows = read_measurements(table)
    write_measurements(tmp_path / "copy.parquet", "finalist", rows)
    assert read_measurements(tmp_path / "copy.parquet") == rows
    assert read_measurements(tmp_path / "none.parquet") == []
    write_measurements(tmp_path / "empty.parquet", "finalist", [])
    assert read_measurements(tmp_path / "empty.parquet") == []


def test_write_measurements_replaces_all_rows_of_the_same_role(table: Path) -> None:
    """Networks that are finalists no longer leave the table; calibrations of 0.1 stay."""
    first, *others = read_measurements(table)
    assert others
    calibration = replace(first, role="calibration")
    write_measurements(table, "calibration", [calibration])
    assert read_measurements(table) == [first, *others, calibration]
    again = replace(first, measurement=replace(first.measurement, n=7))
    write_measurements(table, "finalist", [again])
    assert read_measurements(table) == [calibration, again]
    write_measurements(table, "finalist", [])  # of a run without targets
    assert read_measurements(table) == [calibration]


def test_measurements_file_is_a_plain_parquet_table(table: Path) -> None:
    columns = pyarrow.parquet.read_table(table).to_pydict()
    assert columns["latency_ms"] == [r.measurement.latency_ms for r in read_measurements(table)]
    assert set(columns) >= {"id", "role", "target", "cpu_p50_ms", "wall_p50_ms", "n", "contended"}


@pytest.mark.parametrize("content", [b"", b"garbage", None], ids=["empty", "garbage", "half"])
def test_read_measurements_reports_damage_in_one_line(table: Path, content: bytes | None) -> None:
    whole = table.read_bytes()
    table.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(RunError, match=r"measurements\.parquet is damaged") as caught:
        read_measurements(table)
    assert "\n" not in str(caught.value)


def test_read_measurements_refuses_another_table(table: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), table)
    with pytest.raises(RunError, match="is damaged"):
        read_measurements(table)
