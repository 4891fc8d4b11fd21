"""How much memory a network takes where it runs, measured in a process of its own.

Counted is what a process holds more because of one network: the most anonymous memory (heap,
stacks, private copies) that is resident at any moment while the runtime loads the model file and
runs it three times, less what was resident before. So in it are

- the model file as the runtime parses it, and whatever else loading needs for a while,
- the weights, once more where the runtime packs them for its kernels,
- activations, with all that the runtime's arena takes beyond them: it grows in powers of two,
  and the second run lays its memory out anew once the first has shown what is needed,
- one batch of inputs, and the outputs,
- free memory that the allocator keeps instead of giving it back.

Not in it are the runtime itself, which a tiny network has warmed up before, and pages of files,
such as code of the runtime's library that is loaded when it is first needed: the system can drop
those, and other processes share them. Memory that was swapped out is not seen.

Arena, thread pool and allocator are left as they are on the target, so the number is that of a
program that runs the network, not of a leaner one. What is left of noise comes from addresses that
the system draws at random for each process, on which the order of the runtime's hash tables
depends and so how well its blocks fit together. Hence the median over a few processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from hwnas.atomic import storage_errors
from hwnas.deploy.anchor import write_anchor
from hwnas.deploy.device import Target
from hwnas.deploy.runtime import Session
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.runtimes.checks import check_usable
from hwnas.errors import ArtifactError, ConfigError, DeviceError, HwnasError

__all__ = ["PeakMemory", "peak_memory"]

_PROCESS = Path("/proc/self")
_RUNS = 3  # the runtime's arena still grows at the second
_RESET_PEAK = "5"  # written to clear_refs, see proc(5)
_BAD_INPUT = 2  # status of a process that has said what is wrong


@dataclass(frozen=True)
class PeakMemory:
    """Memory that one network takes on a target beyond the runtime's own.

    Attributes:
        target: Name of the target.
        peak_bytes: At most at any moment of loading and running it, the median over processes.
        loaded_bytes: After loading, before the first run; the median, too.
        lowest_bytes: The smallest peak of a process.
        highest_bytes: The largest peak of a process.
        processes: How many measured it.
    """

    target: str
    peak_bytes: int
    loaded_bytes: int
    lowest_bytes: int
    highest_bytes: int
    processes: int

    @property
    def spread(self) -> float:
        """Largest less smallest peak, as a share of the median."""
        return (self.highest_bytes - self.lowest_bytes) / self.peak_bytes


def peak_memory(
    model: Path, target: Target, processes: int = 3, timeout_s: float = 300.0
) -> PeakMemory:
    """Load and run an ONNX file in fresh processes and read off their memory.

    Args:
        model: The ONNX file.
        target: Where to run it.
        processes: Measure in so many, one after the other; each takes about 2 seconds.
        timeout_s: For each process.

    Raises:
        ArtifactError: The file is missing, damaged or not what the target can run.
        ConfigError: ``processes`` is less than 1.
        DeviceError: The target cannot be used here, the system does not tell a process's memory,
            or the process was killed or took too long.
    """
    if processes < 1:
        raise ConfigError(f"processes is {processes}; expected at least 1")
    _check_system()
    runtime = RUNTIMES[target.device.runtime]
    check_usable(runtime, target)
    if target.device.hardware != "cpu":
        raise DeviceError(f"peak memory is not measured on {target.name}; choose a target of cpu")
    if not model.is_file():
        raise ArtifactError(f"there is no ONNX file {model}; give the path of an existing one")
    with tempfile.TemporaryDirectory() as name:
        anchor = Path(name, "anchor.onnx")
        with storage_errors(anchor):
            write_anchor(anchor)
        # Here, so that it leaves no trace.
        executable = runtime.prepare(model, target, Path(name))
        tiny = runtime.prepare(anchor, _one_image(target), Path(name))
        readings = [_measure(executable, tiny, target, timeout_s) for _ in range(processes)]
    peaks = [reading.peak_bytes for reading in readings]
    loaded = [reading.loaded_bytes for reading in readings]
    return PeakMemory(
        target.name, int(median(peaks)), int(median(loaded)), min(peaks), max(peaks), processes
    )


def _check_system() -> None:
    for name in ("smaps_rollup", "clear_refs", "status"):
        if not (_PROCESS / name).exists():
            raise DeviceError(
                f"peak memory cannot be measured here: there is no {_PROCESS / name}, which Linux "
                "has since 4.14; measure on such a system"
            )


@dataclass(frozen=True)
class _Reading:
    """What one process found."""

    peak_bytes: int
    loaded_bytes: int


def _measure(executable: Path, anchor: Path, target: Target, timeout_s: float) -> _Reading:
    """Start a process and read what it prints."""
    command = [sys.executable, "-m", "hwnas.deploy.memory"]
    command += [os.fspath(executable), os.fspath(anchor), target.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"{executable} was not loaded and run on {target.name} within {timeout_s:g} s; "
            "give it a larger timeout_s"
        ) from error
    lines = done.stderr.strip().splitlines() or [""]
    if done.returncode == _BAD_INPUT:
        raise ArtifactError(lines[-1])
    if done.returncode:
        raise DeviceError(
            f"the process that ran {executable} on {target.name} ended with status "
            f"{done.returncode}, perhaps for lack of memory: {lines[-1]}"
        )
    return _Reading(**json.loads(done.stdout.strip().splitlines()[-1]))


def _main(executable: Path, anchor: Path, target: Target) -> None:
    """What the fresh process does."""
    runtime = RUNTIMES[target.device.runtime]
    tiny = runtime.load(anchor, _one_image(target))
    _run(tiny, 1)
    _give_back_free_memory()
    before = _anonymous_bytes()
    (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
    session = runtime.load(executable, target)
    loaded = _anonymous_bytes()
    _run(session, target.device.batch)
    print(json.dumps(vars(_Reading(_peak_anonymous_bytes() - before, loaded - before))))


def _one_image(target: Target) -> Target:
    return Target(replace(target.device, batch=1))


def _run(session: Session, batch: int) -> None:
    shape = (batch, *session.input_shape)
    images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    for _ in range(_RUNS):
        session.run(images)


def _give_back_free_memory() -> None:
    """Else the network moves into memory that imports have left, and it does not count."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _field_bytes(file: str, field: str) -> int:
    for line in (_PROCESS / file).read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise DeviceError(f"{_PROCESS / file} has no {field}; measure on a newer Linux")


def _anonymous_bytes() -> int:
    """Resident now; counted page by page, while ``status`` is approximate on some kernels."""
    return _field_bytes("smaps_rollup", "Anonymous")


def _peak_anonymous_bytes() -> int:
    """Resident at most since the reset: the peak of all memory without the pages of files.

    What pages of files there are is read off now; they do not get fewer while a network runs.
    """
    anonymous = _anonymous_bytes()
    files = _field_bytes("smaps_rollup", "Rss") - anonymous
    return max(anonymous, _field_bytes("status", "VmHWM") - files)


if __name__ == "__main__":
    try:
        _main(Path(sys.argv[1]), Path(sys.argv[2]), Target.parse(sys.argv[3]))
    except HwnasError as error:
        print(error, file=sys.stderr)
        sys.exit(_BAD_INPUT)
