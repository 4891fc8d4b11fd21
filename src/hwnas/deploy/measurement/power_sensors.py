"""Sensors of the power of a whole board or of a battery, read again and again while a network runs.

They cover everything on the board, also what it uses while idle. Energy is the integral of the
power by the trapezoidal rule.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from hwnas.errors import EnergyUnavailable

__all__ = ["SampledCounter", "pmic_watts", "power_counters"]

_WHOLE = re.compile(r"(^|_)(IN|TOTAL)$", re.IGNORECASE)  # labels of a board's input, as VDD_IN
_UNREADABLE = (OSError, ValueError, subprocess.SubprocessError)
_PMIC = ("vcgencmd", "pmic_read_adc")
_PMIC_LINE = re.compile(r"^\s*(\w+)_([AV]) (?:current|volt)\(\d+\)=([\d.]+)[AV]$", re.MULTILINE)


@dataclass
class SampledCounter:
    """Energy counter that reads a sensor of power in a thread, as long as it is entered.

    Attributes:
        name: Name of the sensor.
        watts: Function that reads the power in watts.
        interval_s: Seconds between two readings.
        least_s: Seconds over which it has to count.
    """

    name: str
    watts: Callable[[], float]
    interval_s: float = 0.02
    least_s: float = 2.0
    _mj: float = field(default=0.0, init=False)
    _failed: bool = field(default=False, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False)

    def __enter__(self) -> Self:
        self._stop.clear()
        self._mj, self._failed = 0.0, False
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def read_mj(self) -> float:
        """Return the millijoules counted so far.

        Raises:
            EnergyUnavailable: The sensor could not be read any more.
        """
        if self._failed:
            raise EnergyUnavailable(
                f"{self.name} could not be read any more; check its sensor, and measure again"
            )
        return self._mj

    def _sample(self) -> None:
        try:
            then, before = time.perf_counter(), self.watts()
            while not self._stop.wait(self.interval_s):
                now, power = time.perf_counter(), self.watts()
                self._mj += 1e3 * (now - then) * (before + power) / 2
                then, before = now, power
        except _UNREADABLE:
            self._failed = True


def power_counters(sysfs: Path) -> list[SampledCounter]:
    """Return the sensors of this board: those of one kind, the most precise first.

    Current sensors of the INA series (as on NVIDIA Jetson boards), the power chip of a Raspberry
    Pi 5, or a battery that is being discharged.

    Args:
        sysfs: Folder in which Linux shows devices by class, ``/sys/class``.
    """
    return _current_sensors(sysfs / "hwmon") or _power_chip() or _batteries(sysfs / "power_supply")


def _current_sensors(folder: Path) -> list[SampledCounter]:
    """Return the INA sensors: the board's input where its label says so, or else all."""
    found: dict[str, SampledCounter] = {}
    for chip in sorted(folder.glob("hwmon*")):
        name = _text(chip / "name")
        if not name.startswith("ina"):
            continue
        for channel in range(1, 9):
            label = _text(chip / f"in{channel}_label") or f"{name} {channel}"
            for watts in (_power(chip, channel), _product(chip, channel)):
                if _works(watts):
                    found[label] = SampledCounter(f"{name.upper()} {label}", watts)
                    break
    whole = [counter for label, counter in found.items() if _WHOLE.search(label)]
    return whole or list(found.values())


def _power(chip: Path, channel: int) -> Callable[[], float]:
    path = chip / f"power{channel}_input"
    return lambda: int(path.read_text()) / 1e6  # microwatts


def _product(chip: Path, channel: int) -> Callable[[], float]:
    volts, amperes = chip / f"in{channel}_input", chip / f"curr{channel}_input"
    return lambda: int(volts.read_text()) * int(amperes.read_text()) / 1e6  # from thousandths


def _power_chip() -> list[SampledCounter]:
    """Return the power chip (PMIC) of a Raspberry Pi 5, which a command of its system reads."""
    if shutil.which(_PMIC[0]) is None or not _works(_pmic):
        return []
    return [SampledCounter("PMIC of the Raspberry Pi", _pmic, interval_s=0.25, least_s=10.0)]


def _pmic() -> float:
    done = subprocess.run(_PMIC, capture_output=True, text=True, timeout=5, check=False)
    return pmic_watts(done.stdout)


def pmic_watts(text: str) -> float:
    """Return the power of all rails, in watts, that ``vcgencmd pmic_read_adc`` printed.

    Raises:
        ValueError: No rail has a current and a voltage.
    """
    read: dict[str, dict[str, float]] = {}
    for rail, unit, number in _PMIC_LINE.findall(text):
        read.setdefault(rail, {})[unit] = float(number)
    rails = [each["A"] * each["V"] for each in read.values() if len(each) > 1]
    if not rails:
        raise ValueError("no rail has a current and a voltage")
    return sum(rails)


def _batteries(folder: Path) -> list[SampledCounter]:
    """Return the batteries that are being discharged; others say nothing about consumption."""
    found = []
    for battery in sorted(folder.glob("*")):
        if _text(battery / "type") != "Battery" or _text(battery / "status") != "Discharging":
            continue
        for watts in (_battery_power(battery), _battery_product(battery)):
            if _works(watts):
                name = f"battery {battery.name}"
                found.append(SampledCounter(name, watts, interval_s=0.25, least_s=30.0))
                break
    return found


def _battery_power(battery: Path) -> Callable[[], float]:
    return lambda: abs(int((battery / "power_now").read_text())) / 1e6  # microwatts


def _battery_product(battery: Path) -> Callable[[], float]:
    amperes, volts = battery / "current_now", battery / "voltage_now"  # in millionths
    return lambda: abs(int(amperes.read_text())) * int(volts.read_text()) / 1e12


def _works(watts: Callable[[], float]) -> bool:
    try:
        watts()
    except _UNREADABLE:
        return False
    return True


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
