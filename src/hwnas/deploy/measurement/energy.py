"""Energy measured by counters in the hardware; without a counter, no energy is estimated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hwnas.deploy.targets.gpu import gpu_handle, gpu_name
from hwnas.errors import EnergyUnavailable

__all__ = [
    "EnergyCounter",
    "EnergyReading",
    "NvmlCounter",
    "RaplCounter",
    "energy_counter",
    "energy_of",
]

RAPL = Path("/sys/class/powercap")


class EnergyCounter(Protocol):
    """Counter of the energy that some hardware has used since an arbitrary time in the past."""

    @property
    def name(self) -> str:
        """Name of the counter, with the hardware that it covers."""
        ...

    def read_mj(self) -> float:
        """Return the millijoules counted so far; only differences are meaningful."""
        ...


@dataclass(frozen=True)
class RaplCounter:
    """Running average power limit (RAPL) counter of an Intel or AMD processor, read through Linux.

    Attributes:
        folder: Folder of one RAPL domain, which contains the counter ``energy_uj``.
        name: Name of the domain.
    """

    folder: Path
    name: str

    @classmethod
    def find(cls, root: Path = RAPL) -> list[RaplCounter]:
        """Return the counters of all processor packages that can be read."""
        found = []
        for folder in sorted(root.glob("*-rapl:[0-9]*")):
            if folder.name.count(":") != 1:
                continue  # a domain within a package
            try:
                name = (folder / "name").read_text().strip()
                int((folder / "energy_uj").read_text())
            except (OSError, ValueError):
                continue
            found.append(cls(folder, f"RAPL {name}"))
        return found

    def read_mj(self) -> float:
        """Return the millijoules counted so far."""
        return int((self.folder / "energy_uj").read_text()) / 1e3


@dataclass(frozen=True)
class NvmlCounter:
    """Energy counter of one NVIDIA GPU (Volta and later).

    Attributes:
        handle: NVML handle of the GPU.
        name: Name of the GPU.
    """

    handle: Any
    name: str

    @classmethod
    def find(cls) -> list[NvmlCounter]:
        """Return the counter of the GPU that targets mean by ``cuda``; none if it has none."""
        if (handle := gpu_handle()) is None:
            return []
        import pynvml

        try:
            pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except pynvml.NVMLError:  # older than Volta, or an instance of a divided GPU
            return []
        return [cls(handle, f"NVML {gpu_name()}")]

    def read_mj(self) -> float:
        """Return the millijoules counted so far."""
        import pynvml

        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle))


@dataclass(frozen=True)
class EnergyReading:
    """Measured energy of one run, averaged over repeated runs.

    Attributes:
        energy_mj: Millijoules per run, including everything that the counter covers.
        power_w: Mean power during the runs, in watts.
        runs: Number of runs.
        seconds: Duration of all runs together.
        counter: Name of the counter.
    """

    energy_mj: float
    power_w: float
    runs: int
    seconds: float
    counter: str


def energy_counter(hardware: str, rapl: Path = RAPL) -> EnergyCounter:
    """Return the energy counter of some hardware of this machine.

    Args:
        hardware: ``"cpu"`` or ``"cuda"``.
        rapl: Folder in which Linux exposes RAPL.

    Raises:
        EnergyUnavailable: There is no counter; the message says what was looked for.
    """
    counters: Sequence[EnergyCounter]
    if hardware == "cpu":
        counters = RaplCounter.find(rapl)
        sought = f"readable RAPL counters under {rapl}"
        advice = "run on a machine that has them, or let root read energy_uj"
    elif hardware == "cuda":
        counters = NvmlCounter.find()
        sought = "NVML's energy counter"
        advice = "install nvidia-ml-py and run on a Volta GPU or later"
    else:
        counters = []
        sought = f"a counter of {hardware}, which is not this machine,"
        advice = "measure the energy on that device"
    if not counters:
        raise EnergyUnavailable(
            f"energy cannot be measured here: looked for {sought} and found none; {advice}, "
            "or read a table of energies that were measured by other means with `hwnas calibrate "
            "--from`"
        )
    if len(counters) > 1:
        return _Together(tuple(counters))
    return counters[0]


@dataclass(frozen=True)
class _Together:
    """Sum of several counters of one machine, such as those of its processor packages."""

    counters: tuple[EnergyCounter, ...]

    @property
    def name(self) -> str:
        return " + ".join(counter.name for counter in self.counters)

    def read_mj(self) -> float:
        return sum(counter.read_mj() for counter in self.counters)


def energy_of(
    run: Callable[[], object],
    counter: EnergyCounter,
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> EnergyReading:
    """Run a function repeatedly and measure its energy.

    Args:
        run: Function that performs one run.
        counter: Energy counter.
        seconds: Duration of the measurement; counters advance every millisecond or less often.
        clock: Clock in seconds.

    Raises:
        EnergyUnavailable: The counter did not advance, or restarted during the measurement.
    """
    run()
    start, before, runs = clock(), counter.read_mj(), 0
    while clock() - start < seconds:
        run()
        runs += 1
    spent, took = counter.read_mj() - before, clock() - start
    if spent <= 0:
        raise EnergyUnavailable(
            f"{counter.name} counted {spent:g} mJ in {took:.2f} s of work; the counter does not "
            "work on this machine, or it was reset; measure again"
        )
    return EnergyReading(spent / runs, 1e-3 * spent / took, runs, took, counter.name)
