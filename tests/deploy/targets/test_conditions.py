from pathlib import Path

from hwnas.deploy.targets.conditions import conditions


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_conditions_report_temperature_frequency_and_governor(tmp_path: Path) -> None:
    write(tmp_path / "class/thermal/thermal_zone0/temp", "48312\n")
    write(tmp_path / "class/thermal/thermal_zone1/temp", "61250\n")
    for number, frequency in enumerate(("1500000", "2400000")):
        processor = tmp_path / f"devices/system/cpu/cpu{number}/cpufreq"
        write(processor / "scaling_cur_freq", frequency)
        write(processor / "scaling_governor", "ondemand\n")
    found = conditions(tmp_path)
    assert float(found.pop("load_1min")) >= 0
    assert found == {"temperature_c": "61.2", "frequency_mhz": "2400", "governor": "ondemand"}


def test_conditions_leave_out_unreadable_values(tmp_path: Path) -> None:
    write(tmp_path / "class/thermal/thermal_zone0/temp", "off")
    (tmp_path / "class/thermal/thermal_zone1/temp").mkdir(parents=True)
    assert set(conditions(tmp_path)) <= {"load_1min"}


def test_conditions_name_an_emulator(tmp_path: Path) -> None:
    write(tmp_path / "self/comm", "qemu-aarch64\n")
    assert conditions(tmp_path, tmp_path)["emulated_by"] == "qemu-aarch64"
    write(tmp_path / "self/comm", "python\n")
    assert "emulated_by" not in conditions(tmp_path, tmp_path)
