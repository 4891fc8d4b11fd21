"""Peak memory of a network on a target, measured in a separate process.

The result is the additional memory of a process that is due to one network: the largest amount of
resident anonymous memory (heap, stacks, private copies) at any moment while the runtime loads the
model file and runs it three times, minus the amount resident before. It includes

- the model file as the runtime parses it, and other temporary memory for loading,
- the weights, a second time if the runtime packs them for its kernels,
- activations, with all that the runtime's arena allocates beyond them: it grows in powers of two,
  and the second run lays out its memory anew once the first has shown what is needed,
- one batch of inputs, and the outputs,
- free memory that the allocator keeps instead of returning it.

It includes neither the runtime itself, which a tiny network has warmed up before, nor file-backed
pages, such as code of the runtime's library that is loaded on first use: the system can drop these
pages, and other processes share them. Memory that was swapped out is not seen.

Arena, thread pool and allocator keep the settings that they have on the target, so the result is
that of a program that runs the network, not of a leaner one. The remaining noise comes from address
space layout randomisation: the addresses determine the order of the runtime's hash tables, and thus
how well its blocks fit together. The result is therefore the median over a few processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hwnas.deploy.measurement.fresh_process import (
    answer_of_process,
    prepared_arguments,
    print_answer,
    reference_target,
)
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.runtimes.checks import check_usable
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.targets.machine import versions
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError, DeviceError

__all__ = ["PeakMemory", "peak_memory"]

_PROCESS = Path("/proc/self")
_RUNS = 3  # the runtime's arena still grows at the second run
_RESET_PEAK = "5"  # written to clear_refs, see proc(5)
_MODULE = "hwnas.deploy.measurement.memory"  # not __name__, which is __main__ in the process


@dataclass(frozen=True)
class PeakMemory:
    """Memory of one network on a target, without the memory of the runtime itself.

    Attributes:
        target: Name of the target.
        peak_bytes: Largest memory at any moment of loading and running the network; median over
            processes.
        loaded_bytes: Memory after loading, before the first run; median over processes.
        lowest_bytes: Smallest peak of a process.
        highest_bytes: Largest peak of a process.
        processes: Number of processes measured.
        versions: Versions of the packages that matter.
    """

    target: str
    peak_bytes: int
    loaded_bytes: int
    lowest_bytes: int
    highest_bytes: int
    processes: int
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, whose numbers state their unit."""
        return asdict(self)

    @property
    def spread(self) -> float:
        """Difference between the largest and the smallest peak, as a share of the median."""
        return (self.highest_bytes - self.lowest_bytes) / self.peak_bytes


def peak_memory(
    model: Path, target: Target, processes: int = 3, timeout_s: float = 300.0
) -> PeakMemory:
    """Load and run an ONNX file in fresh processes and measure their memory.

    Args:
        model: ONNX file.
        target: Target on which to run it, on this machine or on a device.
        processes: Number of processes, one after the other; each starts in about half a second.
        timeout_s: Time limit of each process, in seconds; an agent has a limit of its own.

    Raises:
        ArtifactError: The file is missing, damaged or cannot run on the target.
        ConfigError: ``processes`` is less than 1.
        DeviceError: The target cannot be used, its device does not answer, the system does not
            report a process's memory, or the process was killed or took too long.
    """
    if processes < 1:
        raise ConfigError(f"processes is {processes}; expected at least 1")
    if not target.device.is_here:
        from hwnas.deploy.agent.client.client import reading_elsewhere

        return PeakMemory(**reading_elsewhere("peak_memory", model, target, processes))
    _check_system()
    check_usable(RUNTIMES[target.device.runtime], target)
    if target.device.hardware != "cpu":
        raise DeviceError(f"peak memory is not measured on {target.name}; choose a target with cpu")
    with tempfile.TemporaryDirectory() as name:
        arguments = prepared_arguments(model, target, Path(name))
        what = f"{model} on {target.name}"
        answers = [answer_of_process(_MODULE, arguments, what, timeout_s) for _ in range(processes)]
    readings = [_Reading(**answer) for answer in answers]
    peaks = [reading.peak_bytes for reading in readings]
    loaded = [reading.loaded_bytes for reading in readings]
    return PeakMemory(
        target=target.name,
        peak_bytes=int(median(peaks)),
        loaded_bytes=int(median(loaded)),
        lowest_bytes=min(peaks),
        highest_bytes=max(peaks),
        processes=processes,
        versions=versions(RUNTIMES[target.device.runtime].packages),
    )


def _check_system() -> None:
    for name in ("smaps_rollup", "clear_refs", "status"):
        if not (_PROCESS / name).exists():
            raise DeviceError(
                f"peak memory cannot be measured here: there is no {_PROCESS / name}; measure on "
                "Linux 4.14 or later"
            )


@dataclass(frozen=True)
class _Reading:
    """Memory measured in one process."""

    peak_bytes: int
    loaded_bytes: int


def _reading(executable: Path, reference: Path, target: Target) -> dict[str, int]:
    """Measure in the fresh process."""
    runtime = RUNTIMES[target.device.runtime]
    tiny = runtime.load(reference, reference_target(target))
    _run(tiny, 1)
    _give_back_free_memory()
    before = _anonymous_bytes()
    (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
    session = runtime.load(executable, target)
    loaded = _anonymous_bytes()
    _run(session, target.device.batch)
    return vars(_Reading(_peak_anonymous_bytes() - before, loaded - before))


def _run(session: Session, batch: int) -> None:
    shape = (batch, *session.input_shape)
    images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    for _ in range(_RUNS):
        session.run(images)


def _give_back_free_memory() -> None:
    """Return free memory to the system.

    Otherwise the network would use memory that imports have freed, which would not be counted.
    """
    gc.collect()
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _field_bytes(file: str, field: str) -> int:
    for line in (_PROCESS / file).read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise DeviceError(f"{_PROCESS / file} has no {field}; measure on a newer Linux")


def _anonymous_bytes() -> int:
    """Return the bytes of anonymous memory that are resident now.

    They are counted page by page, because ``status`` is approximate on some kernels.
    """
    return _field_bytes("smaps_rollup", "Anonymous")


def _peak_anonymous_bytes() -> int:
    """Return the largest resident anonymous memory since the reset, in bytes.

    It is the peak of all memory minus the file-backed pages. These are read now, since they do not
    decrease while a network runs.
    """
    anonymous = _anonymous_bytes()
    files = _field_bytes("smaps_rollup", "Rss") - anonymous
    return max(anonymous, _field_bytes("status", "VmHWM") - files)


if __name__ == "__main__":
    _model, _tiny, _target = sys.argv[1:]
    print_answer(partial(_reading, Path(_model), Path(_tiny), Target.parse(_target)))
