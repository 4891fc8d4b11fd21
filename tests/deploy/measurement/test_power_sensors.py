"""Sensors of boards, as folders of files that Linux would show; none was read on a board yet."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hwnas.deploy.measurement import power_sensors
from hwnas.deploy.measurement.energy import energy_counter, energy_of
from hwnas.deploy.measurement.power_sensors import SampledCounter, pmic_watts, power_counters
from hwnas.errors import EnergyUnavailable

PMIC = """\
     3V7_WL_SW_A current(0)=0.07612860A
       VDD_CORE_A current(7)=1.50000000A
     3V7_WL_SW_V volt(8)=3.70000000V
       VDD_CORE_V volt(15)=0.80000000V
           EXT5V_V volt(24)=5.13462000V
"""


@pytest.fixture(autouse=True)
def no_power_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_sensors.shutil, "which", lambda name: None)


def chip(sysfs: Path, number: int, name: str, files: dict[str, object]) -> Path:
    folder = sysfs / "hwmon" / f"hwmon{number}"
    folder.mkdir(parents=True)
    for file, content in {"name": name, **files}.items():
        (folder / file).write_text(f"{content}\n")
    return folder


def jetson(sysfs: Path) -> Path:
    """Write the sensor of a Jetson: 4 W at the input, of which 1 W for processor and GPU."""
    chip(sysfs, 0, "cpu_thermal", {"temp1_input": 40_000})
    return chip(
        sysfs,
        1,
        "ina3221",
        {
            **{"in1_label": "VDD_IN", "in1_input": 5000, "curr1_input": 800},
            **{"in2_label": "VDD_CPU_GPU_CV", "in2_input": 5000, "curr2_input": 200},
        },
    )


def test_sensor_of_the_boards_input_counts_alone(tmp_path: Path) -> None:
    jetson(tmp_path)
    [counter] = power_counters(tmp_path)
    assert counter.name == "INA3221 VDD_IN"
    assert counter.watts() == pytest.approx(4.0)
    assert energy_counter("cpu", tmp_path).name == counter.name


def test_sensors_without_labels_count_together(tmp_path: Path) -> None:
    chip(tmp_path, 0, "ina226", {"power1_input": 1_500_000, "in1_input": 1, "curr1_input": 1})
    chip(tmp_path, 1, "ina226", {"power1_input": "not a number"})
    chip(tmp_path, 2, "ina219", {"in2_input": 12_000, "curr2_input": 250})
    found = {counter.name: counter.watts() for counter in power_counters(tmp_path)}
    assert found == {"INA226 ina226 1": pytest.approx(1.5), "INA219 ina219 2": pytest.approx(3.0)}


def test_energy_of_integrates_the_power_of_a_sensor() -> None:
    began = time.perf_counter()
    counter = SampledCounter("a ramp", lambda: time.perf_counter() - began, 0.005, least_s=0.2)
    found = energy_of(lambda: time.sleep(0.01), counter, seconds=0.0)
    assert found.seconds >= 0.2
    middle = time.perf_counter() - began - found.seconds / 2
    assert found.power_w == pytest.approx(middle, rel=0.25)


def test_sensor_that_fails_gives_no_energy(tmp_path: Path) -> None:
    folder = jetson(tmp_path)
    counter = energy_counter("cpu", tmp_path)
    runs = 0

    def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            (folder / "curr1_input").unlink()
        time.sleep(0.05)

    with pytest.raises(EnergyUnavailable, match="INA3221 VDD_IN could not be read any more"):
        energy_of(run, counter, seconds=0.5)


def test_power_chip_of_a_raspberry_pi_adds_rails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pmic_watts(PMIC) == pytest.approx(0.0761286 * 3.7 + 1.5 * 0.8)
    with pytest.raises(ValueError, match="no rail"):
        pmic_watts("VCHI initialization failed\n")


@pytest.mark.parametrize(
    ("files", "watts"),
    [
        ({"status": "Discharging", "power_now": 7_000_000}, 7.0),
        ({"status": "Discharging", "current_now": -500_000, "voltage_now": 4_000_000}, 2.0),
        ({"status": "Charging", "power_now": 7_000_000}, None),
        ({"status": "Discharging"}, None),
    ],
)
def test_battery_counts_while_it_is_discharged(
    tmp_path: Path, files: dict[str, object], watts: float | None
) -> None:
    folder = tmp_path / "power_supply" / "BAT0"
    folder.mkdir(parents=True)
    for file, content in {"type": "Battery", **files}.items():
        (folder / file).write_text(f"{content}\n")
    found = power_counters(tmp_path)
    assert [counter.watts() for counter in found] == ([] if watts is None else [watts])
