from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from hwnas.deploy import export_onnx
from hwnas.errors import ConfigError, DataError
from hwnas.predictors import DeviceStore
from hwnas.predictors.devices.cost_file import CostFile, read_cost_file
from hwnas.predictors.devices.table_import import adopt
from hwnas.search_spaces import Architecture, mobilenet

SPACE = mobilenet((8, 8, 1), 10)
NETWORKS = [SPACE.sample(random.Random(seed)) for seed in range(5)]


def write(folder: Path, costs: list[str], header: str = "network,latency_ms") -> Path:
    lines = []
    for index, cost in enumerate(costs):
        path = folder / f"{index}.json"
        path.write_text(json.dumps(NETWORKS[index % len(NETWORKS)].to_json()))
        lines.append(f"{path.name},{cost}")
    table = folder / "costs.csv"
    table.write_text("\n".join([header, *lines]) + "\n")
    return table


def ms(network: Architecture) -> float:
    return 0.02 + 1e-7 * SPACE.workload(network).macs


def latencies(count: int = 5, factor: float = 1.0) -> list[str]:
    return [f"{factor * ms(NETWORKS[i % 5]):.6g}" for i in range(count)]


@pytest.mark.slow
def test_cost_file_reads_architectures_and_onnx_files_as_equal_networks(tmp_path: Path) -> None:
    found = read_cost_file(write(tmp_path, latencies()), SPACE)
    assert len(found.networks) == 5
    assert found.costs["latency_ms"] == pytest.approx([ms(n) for n in NETWORKS], rel=1e-5)
    for network in NETWORKS[:3]:
        export_onnx(
            SPACE.build(network),
            SPACE.input_shape(network),
            tmp_path / f"{network.id}.onnx",
            traceable=True,
        )
    lines = [f"{network.id}.onnx,{ms(network)}" for network in NETWORKS[:3]]
    (tmp_path / "onnx.csv").write_text("\n".join(["network,latency_ms", *lines]))
    onnx = read_cost_file(tmp_path / "onnx.csv")
    assert onnx.steps.macs.tolist() == found.steps.macs[:3].tolist()


def test_cost_file_reads_several_metrics_and_ignores_other_columns(tmp_path: Path) -> None:
    lines = [f"{each},7,a note" for each in latencies()]
    found = read_cost_file(write(tmp_path, lines, "network,latency_ms,energy_mj,note"), SPACE)
    assert set(found.costs) == {"latency_ms", "energy_mj"}


@pytest.mark.slow
def test_cost_file_reports_conflicting_lines_and_uses_their_median(tmp_path: Path) -> None:
    found = read_cost_file(write(tmp_path, [*latencies(), "99", "0.5"]), SPACE)
    assert len(found.networks) == 5
    assert len(found.notes) == 2
    assert "0.json has 2 values of latency_ms from" in found.notes[0]
    first = found.costs["latency_ms"][0]
    assert first == pytest.approx((ms(NETWORKS[0]) + 99) / 2, rel=1e-4)
    calm = read_cost_file(write(tmp_path, latencies(7, 1.0)), SPACE)
    assert calm.notes == ()


@pytest.mark.parametrize("cost", ["-1", "0", "nan", "inf", "", "fast"])
def test_cost_file_refuses_invalid_costs_with_their_line(tmp_path: Path, cost: str) -> None:
    table = write(tmp_path, [*latencies(3), cost])
    with pytest.raises(DataError, match=r"costs\.csv, line 5: latency_ms is .*positive number"):
        read_cost_file(table, SPACE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,ms\na,1\n", "has model, ms; expected the column network and at least one of"),
        ("", "has no lines"),
        ("network,latency_ms\nnone.onnx,1\n", "line 2: there is no ONNX file"),
        ("network,latency_ms\nnone.json,1\n", "line 2: none.json cannot be read as an architectur"),
        ('network,latency_ms\n"{}",1\n', "line 2: .* cannot be read as an arch"),
    ],
)
def test_cost_file_refuses_malformed_tables(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "costs.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_cost_file(tmp_path / "costs.csv", SPACE)


def test_cost_file_refuses_too_few_networks_no_space_or_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 different networks; a prediction needs at least 3"):
        read_cost_file(write(tmp_path, latencies(2)), SPACE)
    with pytest.raises(DataError, match="name its space with --space"):
        read_cost_file(write(tmp_path, latencies()))
    with pytest.raises(DataError, match="there is no table"):
        read_cost_file(tmp_path / "none.csv")


def read(folder: Path, factor: float = 1.0) -> CostFile:
    return read_cost_file(write(folder, latencies(factor=factor)), SPACE)


@pytest.mark.slow
def test_adopt_stores_a_device_and_updates_its_costs(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path / "store")
    [profile] = adopt("my-phone", read(tmp_path), store, runtime="litert-2.3")
    assert profile.kind == "table"
    assert store.load("my-phone").runtime == "litert-2.3"
    # The same networks again: newer costs replace the old ones.
    [again] = adopt("my-phone", read(tmp_path, 2.0), store, runtime="litert-2.3")
    assert len(again) == 5
    assert again.costs == pytest.approx(2 * profile.costs, rel=1e-4)
    with pytest.raises(ConfigError, match=r"with the runtime 'litert-2\.3', but these"):
        adopt("my-phone", read(tmp_path), store, runtime="onnxruntime")


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "unit"), [(1e-3, "seconds"), (1e3, "microseconds")])
def test_adopt_refuses_a_likely_wrong_unit_without_trust_units(
    tmp_path: Path, factor: float, unit: str
) -> None:
    store = DeviceStore(tmp_path / "store")
    with pytest.raises(DataError, match=f"are these {unit}.*--trust-units"):
        adopt("my-phone", read(tmp_path, factor), store)
    assert store.devices == []
    adopt("my-phone", read(tmp_path, factor), store, trust_units=True)
    assert store.devices == ["my-phone"]
