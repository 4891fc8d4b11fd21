"""Files of tuning results: writing, reading, invalid files, and the nearest sizes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ArtifactError
from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.suite.timer import Times
from hwnas.kernels.tuning.tuned import TunedEntry, TunedTable, own_path, shipped_path

H200, A100 = ACCELERATORS["nvidia-h200"], ACCELERATORS["nvidia-a100"]


def entry(rows: int = 196, p50_us: float = 5.0, **rivals: float) -> TunedEntry:
    """Return an entry with made-up times."""
    return TunedEntry(
        operator="pointwise",
        dtype="float16",
        sizes={"rows": rows, "gate": 0},
        config={"BLOCK_M": 16, "num_warps": 4},
        times=Times(p50_us - 1, p50_us, p50_us + 1, 30),
        timing="made up",
        rivals={name: Times(us, us, us, 30) for name, us in rivals.items()},
        versions={"triton": "3.6.0", "torch": "2.11.0", "driver": "1.2"},
        date="2026-01-02T03:04:05+00:00",
    )


def test_tuned_table_survives_writing_and_reading(tmp_path: Path) -> None:
    table = TunedTable(H200.name, (entry(49), entry(196, reference=7.0)))
    table.write(tmp_path / "gpu.json")
    assert TunedTable.read(tmp_path / "gpu.json", H200) == table


def test_tuned_file_names_device_fastest_backend_and_times(tmp_path: Path) -> None:
    TunedTable(H200.name, (entry(196, 5.0, cudnn=4.0),)).write(tmp_path / "gpu.json")
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["device"] == "NVIDIA H200"
    [row] = found["entries"]
    assert row["fastest"] == "cudnn"
    assert row["times"] == {"p20_us": 4.0, "p50_us": 5.0, "p80_us": 6.0, "n": 30}
    assert row["rivals"]["cudnn"]["p50_us"] == 4.0


def test_tuned_table_is_empty_without_a_file(tmp_path: Path) -> None:
    assert TunedTable.read(tmp_path / "none.json", H200) == TunedTable("NVIDIA H200")


def test_tuned_table_refuses_a_file_of_another_gpu(tmp_path: Path) -> None:
    TunedTable(A100.name, (entry(),)).write(tmp_path / "gpu.json")
    with pytest.raises(ArtifactError, match="results of 'NVIDIA A100', expected 'NVIDIA H200'"):
        TunedTable.read(tmp_path / "gpu.json", H200)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2 is not 1; use the hwnas version that wrote it"),
        ({"entries": [{}]}, "is not a file of tuning results .KeyError: 'operator'"),
        ({"entries": 3}, "is not a file of tuning results"),
        ({"entries": [entry().to_json() | {"sizes": [1]}]}, "is not a file of tuning results"),
        (
            {"entries": [entry().to_json() | {"times": {"p50_us": "fast"}}]},
            "is not a file of tuning results",
        ),
    ],
)
def test_tuned_table_refuses_damaged_entries_and_another_schema(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"schema": 1, "device": H200.name, "entries": []} | change))
    with pytest.raises(ArtifactError, match=message):
        TunedTable.read(path, H200)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 1}', "\x00"])
def test_tuned_table_refuses_text_that_is_no_table(tmp_path: Path, text: str) -> None:
    (tmp_path / "gpu.json").write_text(text)
    with pytest.raises(ArtifactError, match="Delete it and tune again"):
        TunedTable.read(tmp_path / "gpu.json", H200)


def test_tuned_table_replaces_the_older_entry_of_the_same_sizes() -> None:
    table = TunedTable(H200.name, (entry(49), entry(196)))
    newer = entry(196, 3.0)
    assert table.with_entry(newer).entries == (entry(49), newer)
    assert len(table.with_entry(replace(newer, dtype="float32")).entries) == 3
    assert TunedTable(H200.name, (newer,)).over(table).entries == (entry(49), newer)


@pytest.mark.parametrize(
    ("rivals", "fastest", "beats"),
    [
        ({}, "triton", True),
        ({"reference": 5.0}, "triton", True),
        ({"reference": 4.0}, "reference", False),
        ({"reference": 9.0, "cudnn": 4.0}, "cudnn", True),
    ],
)
def test_tuned_entry_names_the_fastest_and_whether_it_beats_reference(
    rivals: dict[str, float], fastest: str, beats: bool
) -> None:
    assert entry(**rivals).fastest == fastest
    assert entry(**rivals).beats_reference == beats


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=6, unique=True), st.integers(1, 9999))
def test_tuned_table_nearest_orders_entries_by_distance(rows: list[int], asked: int) -> None:
    table = TunedTable(H200.name, tuple(map(entry, rows)))
    near = table.nearest("pointwise", "float16", {"rows": asked, "gate": 0})
    distances = [found.distance({"rows": asked, "gate": 0}) for found in near]
    assert distances == sorted(distances)
    assert len(near) == len(rows)
    assert (distances[0] == 0) == (asked in rows)


def test_tuned_table_nearest_ignores_other_operators_dtypes_and_sizes() -> None:
    table = TunedTable(H200.name, (entry(),))
    sizes = {"rows": 196, "gate": 0}
    assert table.nearest("pointwise", "float16", sizes)
    assert not table.nearest("depthwise", "float16", sizes)
    assert not table.nearest("pointwise", "float32", sizes)
    assert not table.nearest("pointwise", "float16", {"rows": 196})


def test_tuned_files_of_the_package_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWNAS_HOME", "/somewhere")
    assert own_path(H200) == Path("/somewhere/kernels/nvidia-h200.json")
    folder = shipped_path(H200).parent
    assert (folder / "README.md").is_file()
    gpus = {gpu.key: gpu for gpu in ACCELERATORS.values()}
    for path in folder.glob("*.json"):
        assert TunedTable.read(path, gpus[path.stem]).entries
