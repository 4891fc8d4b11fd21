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


def test_what_is_written_is_read(table: Path, tmp_path: Path) -> None:
    rows = read_measurements(table)
    write_measurements(tmp_path / "copy.parquet", rows)
    assert read_measurements(tmp_path / "copy.parquet") == rows
    assert read_measurements(tmp_path / "none.parquet") == []
    write_measurements(tmp_path / "empty.parquet", [])
    assert read_measurements(tmp_path / "empty.parquet") == []


def test_a_newer_row_of_the_same_network_role_and_target_replaces_the_older(table: Path) -> None:
    first, *others = read_measurements(table)
    slower = replace(first, measurement=replace(first.measurement, n=7))
    elsewhere = replace(first, measurement=replace(first.measurement, target="another"))
    write_measurements(table, [slower, elsewhere])
    assert read_measurements(table) == [slower, *others, elsewhere]


def test_it_is_a_plain_table_for_other_tools(table: Path) -> None:
    columns = pyarrow.parquet.read_table(table).to_pydict()
    assert columns["latency_ms"] == [r.measurement.latency_ms for r in read_measurements(table)]
    assert set(columns) >= {"id", "role", "target", "cpu_p50_ms", "wall_p50_ms", "n", "contended"}


@pytest.mark.parametrize("content", [b"", b"garbage", None], ids=["empty", "garbage", "half"])
def test_damage_is_one_line(table: Path, content: bytes | None) -> None:
    whole = table.read_bytes()
    table.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(RunError, match=r"measurements\.parquet is damaged") as caught:
        read_measurements(table)
    assert "\n" not in str(caught.value)


def test_a_table_of_something_else_is_refused(table: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), table)
    with pytest.raises(RunError, match="is damaged"):
        read_measurements(table)
