from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwnas.deploy import Target
from hwnas.deploy.export.to_onnx import Export
from hwnas.deploy.measurement import energy
from hwnas.deploy.measurement.energy import (
    RaplCounter,
    energy_counter,
    energy_of,
    measured_energy,
)
from hwnas.errors import EnergyUnavailable


class Meter:
    """Energy counter whose runs take 5 mJ and 0.01 s each."""

    name, least_s = "a meter", 0.0

    def __init__(self) -> None:
        self.mj = 1000.0
        self.seconds = 0.0

    def read_mj(self) -> float:
        return self.mj

    def run(self) -> None:
        self.mj += 5.0
        self.seconds += 0.01

    def clock(self) -> float:
        return self.seconds


def test_measured_energy_runs_the_network_and_states_versions(
    exported: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter()
    monkeypatch.setattr(meter, "read_mj", lambda: 5e3 * time.perf_counter(), raising=False)
    monkeypatch.setattr(energy, "energy_counter", lambda hardware: meter)
    found = measured_energy(exported.path, Target.parse("cpu-onnxruntime-fp32-b1-t1"), 0.05)
    assert found.power_w == pytest.approx(5.0, rel=0.05)
    assert found.runs > 1
    assert found.versions["onnxruntime"]


def package(root: Path, name: str, energy_uj: int | str) -> Path:
    folder = root / "powercap" / name
    folder.mkdir(parents=True)
    (folder / "name").write_text("package-0\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    return folder


def test_energy_of_gives_energy_and_power_per_run() -> None:
    meter = Meter()
    reading = energy_of(meter.run, meter, seconds=1.0, clock=meter.clock)
    assert reading.energy_mj == pytest.approx(5.0)
    assert reading.power_w == pytest.approx(0.5)
    assert reading.runs == 100
    assert reading.counter == "a meter"


def test_energy_of_refuses_a_counter_that_does_not_advance() -> None:
    times: Iterator[float] = iter(range(10))
    meter = Meter()
    with pytest.raises(EnergyUnavailable, match="counted 0 mJ in"):
        energy_of(lambda: None, meter, seconds=3, clock=lambda: next(times))


def test_energy_counter_names_the_missing_rapl_counters(tmp_path: Path) -> None:
    with pytest.raises(EnergyUnavailable, match="RAPL counters and power sensors under") as raised:
        energy_counter("cpu", tmp_path)
    assert isinstance(raised.value, RuntimeError)


def test_rapl_counter_adds_packages_but_not_their_subdomains(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", 2_000_000)
    package(tmp_path, "intel-rapl:1", 1_000_000)
    package(tmp_path, "intel-rapl:0:0", 500_000)
    package(tmp_path, "intel-rapl:2", "not a number")
    assert len(RaplCounter.find(tmp_path)) == 2
    counter = energy_counter("cpu", tmp_path)
    assert counter.read_mj() == 3000
    assert counter.name == "RAPL package-0 + RAPL package-0"


class NVMLError(Exception):
    pass


class Nvml:
    """Replacement of the module pynvml for two GPUs, of which the second has no counter."""

    NVMLError = NVMLError
    gpus = ("GPU-a", "GPU-b")

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index >= len(self.gpus):
            raise NVMLError
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, identifier: str) -> str:
        if identifier not in self.gpus:
            raise NVMLError
        return identifier

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"model of {handle}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if handle != "GPU-a":
            raise NVMLError
        return 7_000


@pytest.mark.parametrize("visible", [None, "0", "0,1", "GPU-a"])
def test_energy_counter_reads_only_the_gpu_that_cuda_uses(
    monkeypatch: pytest.MonkeyPatch, visible: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    counter = energy_counter("cuda")
    assert counter.name == "NVML model of GPU-a"
    assert counter.read_mj() == 7_000


@pytest.mark.parametrize("visible", ["1", "1,0", "GPU-b", "2", "MIG-c", "", "-1"])
def test_energy_counter_refuses_a_gpu_without_a_counter(
    monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(EnergyUnavailable, match="NVML's energy counter and power sensors"):
        energy_counter("cuda")
