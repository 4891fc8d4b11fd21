from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hwnas.errors import ArtifactError, ConfigError
from hwnas.predictors import DevicePredictor, DeviceProfile, DeviceStore
from hwnas.search_spaces import OperatorCountTable, Workload


def profile(unseen: list[Workload], device: str = "my-phone", count: int = 6) -> DeviceProfile:
    some = unseen[:count]
    return DeviceProfile(
        device,
        networks=tuple(workload.id for workload in some),
        steps=OperatorCountTable.of_workloads(some),
        costs=np.array([1e-6 * workload.macs for workload in some]),
        hardware="a phone",
        versions={"litert": "2.3"},
        held_out_error=0.04,
    )


def test_store_loads_a_profile_as_saved(tmp_path: Path, unseen: list[Workload]) -> None:
    store = DeviceStore(tmp_path / "devices")
    saved = profile(unseen)
    store.save(saved)
    loaded = store.load("my-phone")
    assert loaded.description() == json.loads(json.dumps(saved.description())) | {
        "networks": saved.networks
    }
    assert loaded.costs.tolist() == saved.costs.tolist()
    assert loaded.steps.macs.tolist() == saved.steps.macs.tolist()
    assert store.devices == ["my-phone"]
    assert store.metrics("my-phone") == ["latency_ms"]
    before, after = (DevicePredictor.of(each) for each in (saved, loaded))
    assert before.predict(unseen[6:9]) == after.predict(unseen[6:9])
    assert DevicePredictor.load(store, "my-phone").predict(unseen[6:7]) == after.predict(
        unseen[6:7]
    )


def test_store_writes_json_and_safetensors_only(tmp_path: Path, unseen: list[Workload]) -> None:
    folder = DeviceStore(tmp_path).save(profile(unseen))
    assert sorted(path.name for path in folder.iterdir()) == [
        "measurements.safetensors",
        "profile.json",
    ]


def test_profile_with_more_appends_measurements(unseen: list[Workload]) -> None:
    more = profile(unseen).with_more(
        ["new"], OperatorCountTable.of_workloads(unseen[6:7]), np.array([3.0])
    )
    assert len(more) == 7
    assert more.networks[-1] == "new"
    assert more.steps.macs[-1] == unseen[6].macs


def test_store_default_folder_follows_hwnas_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path))
    assert DeviceStore.default().folder == tmp_path / "devices"
    monkeypatch.delenv("HWNAS_HOME")
    assert DeviceStore.default().folder == Path.home() / ".hwnas" / "devices"


def test_store_refuses_unknown_devices_and_suggests_the_nearest(
    tmp_path: Path, unseen: list[Workload]
) -> None:
    store = DeviceStore(tmp_path)
    with pytest.raises(ConfigError, match="no device is known yet"):
        store.load("my-fone")
    store.save(profile(unseen))
    with pytest.raises(ConfigError, match="did you mean 'my-phone'"):
        store.load("my-fone")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a" * 81])
def test_profile_refuses_names_that_are_not_folder_names(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a device's name"):
        DeviceProfile(name)


def test_store_refuses_profiles_of_a_newer_version(tmp_path: Path, unseen: list[Workload]) -> None:
    store = DeviceStore(tmp_path)
    path = store.save(profile(unseen)) / "profile.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "schema": 2, "from_the_future": 1}))
    with pytest.raises(
        ArtifactError, match=r"has schema 2, but this version of hwnas reads 1; update hwnas"
    ):
        store.load("my-phone")


@pytest.mark.parametrize("file", ["profile.json", "measurements.safetensors"])
def test_store_reports_damaged_files_in_one_line(
    tmp_path: Path, unseen: list[Workload], file: str
) -> None:
    store = DeviceStore(tmp_path)
    path = store.save(profile(unseen)) / file
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ArtifactError, match="damaged") as raised:
        store.load("my-phone")
    assert len(str(raised.value).splitlines()) == 1
    path.unlink()
    with pytest.raises((ArtifactError, ConfigError), match="my-phone"):
        store.load("my-phone")


def test_profile_refuses_invalid_costs_and_metrics(unseen: list[Workload]) -> None:
    good = profile(unseen)
    with pytest.raises(ConfigError, match="a latency_ms is -1; expected a positive number"):
        DeviceProfile("x", networks=good.networks, steps=good.steps, costs=-np.ones(6))
    with pytest.raises(ConfigError, match="6 names, 6 networks and 2 costs"):
        DeviceProfile("x", networks=good.networks, steps=good.steps, costs=np.ones(2))
    with pytest.raises(ConfigError, match="unknown metric 'speed'"):
        DeviceProfile("x", "speed")  # type: ignore[arg-type]
