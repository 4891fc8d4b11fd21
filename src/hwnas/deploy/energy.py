"""Energy that a counter in the hardware has counted; where there is none, none is made up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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
    """Counts the energy that some hardware has taken since some time in the past."""

    @property
    def name(self) -> str:
        """What counts and what it counts."""
        ...

    def read_mj(self) -> float:
        """Millijoules so far; only differences mean something."""
        ...


@dataclass(frozen=True)
class RaplCounter:
    """Intel's and AMD's running average power limit counters, as Linux shows them.

    Attributes:
        folder: Of one domain, with the counter ``energy_uj``.
        name: Of the domain.
    """

    folder: Path
    name: str

    @classmethod
    def find(cls, root: Path = RAPL) -> list[RaplCounter]:
        """Counters of all processor packages that may be read."""
        found = []
        for folder in sorted(root.glob("*-rapl:[0-9]*")):
            if folder.name.count(":") != 1:
                continue  # a part of a package
            try:
                name = (folder / "name").read_text().strip()
                int((folder / "energy_uj").read_text())
            except (OSError, ValueError):
                continue
            found.append(cls(folder, f"RAPL {name}"))
        return found

    def read_mj(self) -> float:
        """Millijoules so far."""
        return int((self.folder / "energy_uj").read_text()) / 1e3


@dataclass(frozen=True)
class NvmlCounter:
    """The energy counter of one NVIDIA GPU (Volta and later).

    Attributes:
        handle: NVML's.
        name: Of the GPU.
    """

    handle: Any
    name: str

    @classmethod
    def find(cls) -> list[NvmlCounter]:
        """Counters of all GPUs that have one."""
        try:
            import pynvml
        except ImportError:
            return []
        found = []
        try:
            pynvml.nvmlInit()
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
                found.append(cls(handle, f"NVML GPU {index}"))
        except pynvml.NVMLError:
            return found
        return found

    def read_mj(self) -> float:
        """Millijoules so far."""
        import pynvml

        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle))


@dataclass(frozen=True)
class EnergyReading:
    """Measured energy of one run.

    Attributes:
        energy_mj: Millijoules a run, everything that the counter covers included.
        power_w: Watts while it ran.
        runs: How many runs were counted.
        seconds: How long they took.
        counter: What counted.
    """

    energy_mj: float
    power_w: float
    runs: int
    seconds: float
    counter: str


def energy_counter(hardware: str, rapl: Path = RAPL) -> EnergyCounter:
    """The counter of some hardware of this machine.

    Args:
        hardware: ``"cpu"`` or ``"cuda"``.
        rapl: Where Linux shows RAPL.

    Raises:
        EnergyUnavailable: There is none; the message says what was looked for.
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
        advice = "measure it there"
    if not counters:
        raise EnergyUnavailable(
            f"energy cannot be measured here: looked for {sought} and found none; {advice}. "
            "A table measured elsewhere does as well"
        )
    if len(counters) > 1:
        return _Together(tuple(counters))
    return counters[0]


@dataclass(frozen=True)
class _Together:
    """Several packages of one machine."""

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
    """Run something again and again and count.

    Args:
        run: Runs it once.
        counter: Counts.
        seconds: For how long; counters step every millisecond or slower.
        clock: Gives seconds.

    Raises:
        EnergyUnavailable: The counter did not move, or started anew in between.
    """
    run()
    start, before, runs = clock(), counter.read_mj(), 0
    while clock() - start < seconds:
        run()
        runs += 1
    spent, took = counter.read_mj() - before, clock() - start
    if spent <= 0:
        raise EnergyUnavailable(
            f"{counter.name} counted {spent:g} mJ in {took:.2f} s of work; it does not count on "
            "this machine, or it started anew; measure again"
        )
    return EnergyReading(spent / runs, 1e-3 * spent / took, runs, took, counter.name)
