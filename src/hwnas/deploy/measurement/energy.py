"""Energy measured by counters and sensors in the hardware; without them, none is estimated."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from hwnas.deploy.measurement.power_sensors import power_counters
from hwnas.deploy.measurement.timing import prepared_run
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.targets.gpu import gpu_handle, gpu_name
from hwnas.deploy.targets.machine import versions
from hwnas.deploy.targets.target import Target
from hwnas.errors import EnergyUnavailable

__all__ = [
    "EnergyCounter",
    "EnergyReading",
    "NvmlCounter",
    "RaplCounter",
    "check_energy",
    "energy_counter",
    "energy_of",
    "measured_energy",
]

_SYSFS = Path("/sys/class")


class EnergyCounter(Protocol):
    """Counter of the energy that some hardware has used since an arbitrary time in the past.

    A counter that has to be started is a context manager, too.
    """

    @property
    def name(self) -> str:
        """Name of the counter, with the hardware that it covers."""
        ...

    @property
    def least_s(self) -> float:
        """Seconds over which it has to count, since it advances in steps."""
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
        least_s: Seconds over which it has to count.
    """

    folder: Path
    name: str
    least_s: float = 0.1

    @classmethod
    def find(cls, sysfs: Path = _SYSFS) -> list[RaplCounter]:
        """Return the counters of all processor packages that can be read."""
        found = []
        for folder in sorted((sysfs / "powercap").glob("*-rapl:[0-9]*")):
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
        least_s: Seconds over which it has to count.
    """

    handle: Any
    name: str
    least_s: float = 0.5

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
        versions: Versions of the packages that matter.
    """

    energy_mj: float
    power_w: float
    runs: int
    seconds: float
    counter: str
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, whose numbers state their unit."""
        return asdict(self)


def measured_energy(model: Path, target: Target, seconds: float = 2.0) -> EnergyReading:
    """Run an ONNX file again and again on a target, and measure its energy.

    A remote device measures with its own counter, for two seconds at least.

    Args:
        model: ONNX file.
        target: Target on which to run it, on this machine or on a device.
        seconds: Least duration of the measurement.

    Raises:
        ArtifactError: The file is damaged or cannot run on the target.
        DeviceError: The target cannot be used, or its device does not answer.
        EnergyUnavailable: There is no counter, or it did not advance.
    """
    if not target.device.is_here:
        from hwnas.deploy.agent.client.client import reading_elsewhere

        return EnergyReading(**reading_elsewhere("energy", model, target))
    counter = energy_counter(target.device.hardware)
    found = energy_of(prepared_run(model, target), counter, seconds)
    return replace(found, versions=versions(RUNTIMES[target.device.runtime].packages))


def check_energy(target: Target) -> None:
    """Raise if the energy of a target of this machine cannot be measured; others are not asked.

    Raises:
        EnergyUnavailable: There is no counter.
    """
    if target.device.is_here:
        energy_counter(target.device.hardware)


def energy_counter(hardware: str, sysfs: Path = _SYSFS) -> EnergyCounter:
    """Return the energy counter of some hardware of this machine.

    Without a counter of the processor or GPU itself, it is one of sensors of the whole board.

    Args:
        hardware: ``"cpu"`` or ``"cuda"``.
        sysfs: Folder in which Linux shows counters and sensors.

    Raises:
        EnergyUnavailable: There is no counter; the message says what was looked for.
    """
    counters: Sequence[EnergyCounter]
    if hardware == "cpu":
        counters = RaplCounter.find(sysfs) or power_counters(sysfs)
        sought = f"readable RAPL counters and power sensors under {sysfs}"
        advice = "run on a machine that has them, or let root read energy_uj"
    elif hardware == "cuda":
        counters = NvmlCounter.find() or power_counters(sysfs)
        sought = f"NVML's energy counter and power sensors under {sysfs}"
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

    @property
    def least_s(self) -> float:
        return max(counter.least_s for counter in self.counters)

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
        seconds: Duration of the measurement; longer if the counter needs that.
        clock: Clock in seconds.

    Raises:
        EnergyUnavailable: The counter did not advance, or restarted during the measurement.
    """
    run()
    with contextlib.ExitStack() as stack:
        if isinstance(counter, contextlib.AbstractContextManager):
            stack.enter_context(counter)
        start, before, runs = clock(), counter.read_mj(), 0
        while clock() - start < max(seconds, counter.least_s):
            run()
            runs += 1
        spent, took = counter.read_mj() - before, clock() - start
    if spent <= 0:
        raise EnergyUnavailable(
            f"{counter.name} counted {spent:g} mJ in {took:.2f} s of work; the counter does not "
            "work on this machine, or it was reset; measure again"
        )
    return EnergyReading(spent / runs, 1e-3 * spent / took, runs, took, counter.name)
