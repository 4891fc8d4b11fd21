"""Conditions of a machine during a measurement, as far as its system reports them."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["EMULATOR", "conditions"]

SYSTEM, PROCESSES = Path("/sys"), Path("/proc")
EMULATOR = "emulated_by"
"""Condition of a process whose processor is emulated, so that its times say nothing."""


def conditions(system: Path = SYSTEM, processes: Path = PROCESSES) -> dict[str, str]:
    """Return the current temperature, frequency and load, with units in the names.

    Values that the system does not report are left out: a virtual machine, for example, has no
    temperature.

    Args:
        system: Folder in which Linux exposes its devices.
        processes: Folder in which Linux exposes its processes.
    """
    found = {}
    zones = system / "class" / "thermal"
    if temperatures := _numbers(zones, "thermal_zone*/temp"):
        found["temperature_c"] = f"{max(temperatures) / 1e3:.1f}"
    processors = system / "devices" / "system" / "cpu"
    if frequencies := _numbers(processors, "cpu[0-9]*/cpufreq/scaling_cur_freq"):
        found["frequency_mhz"] = f"{max(frequencies) / 1e3:.0f}"
    if governors := _texts(processors, "cpu[0-9]*/cpufreq/scaling_governor"):
        found["governor"] = ", ".join(dict.fromkeys(governors))
    if hasattr(os, "getloadavg"):
        found["load_1min"] = f"{os.getloadavg()[0]:.2f}"
    # QEMU's emulation of one program leaves its own name to the process.
    if names := [name for name in _texts(processes / "self", "comm") if name.startswith("qemu-")]:
        found[EMULATOR] = names[0]
    return found


def _numbers(folder: Path, pattern: str) -> list[int]:
    texts = _texts(folder, pattern)
    return [int(text) for text in texts if text.lstrip("-").isdigit()]


def _texts(folder: Path, pattern: str) -> list[str]:
    found = []
    for path in sorted(folder.glob(pattern)):
        try:
            found.append(path.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError):  # sensors that are switched off cannot be read
            continue
    return found
