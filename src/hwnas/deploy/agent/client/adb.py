"""Android devices that are reached through ``adb``, and run a benchmark program.

Nothing of hwnas runs on such a device: this host does what an agent does elsewhere, and has the
device run ``benchmark_model`` of LiteRT or ``onnxruntime_perf_test`` of ONNX Runtime. Each run of
the program is a round of about a second, and the rounds of all networks are interleaved, also with
those of the reference model. Only wall time is known.
"""

from __future__ import annotations

import json
import re
import shlex
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import hwnas
from hwnas.deploy.agent.client.added_devices import AddedDevice
from hwnas.deploy.agent.measured_model import check_model
from hwnas.deploy.agent.measuring_job import LATENCY, JobState, MeasuringJob
from hwnas.deploy.agent.protocol import PREFIX, AgentDescription, read_object, refusal
from hwnas.deploy.agent.signing import digest_of
from hwnas.deploy.error_line import first_line
from hwnas.errors import ArtifactError, ConfigError, DeviceError, HwnasError

if TYPE_CHECKING:
    from hwnas.deploy.measurement.measurement import Measurement
    from hwnas.deploy.targets.target import Target

__all__ = ["ADB", "PROGRAMS", "AdbTransport", "BenchmarkProgram", "RoundTimes"]

ADB = "adb://"
"""Beginning of the address of such a device; its serial number follows."""

_SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_FOLDER = PurePosixPath("/data/local/tmp/hwnas")
_ROUNDS = 7
_UNSTEADY = 1.1  # longest over shortest round of a network that was not disturbed
_GONE = ("not found", "offline", "unauthorized", "no devices", "daemon")
_MOST_SECONDS = 180.0  # for one command


@dataclass(frozen=True)
class RoundTimes:
    """Times of the runs of one round, in milliseconds.

    Attributes:
        middle_ms: Median, or the mean if the program tells no median.
        p95_ms: 95th percentile; None if the program does not tell it.
        runs: Number of runs.
    """

    middle_ms: float
    p95_ms: float | None
    runs: int


@dataclass(frozen=True)
class BenchmarkProgram:
    """Program that times a network, with the runtime that it belongs to.

    Attributes:
        name: Name of its file.
        runtime: Name of the runtime, a key of `RUNTIMES`, which prepares networks on this host.
        arguments: Function of a file, a batch size, the name of that dimension, and a number of
            threads, which returns the arguments of a round.
        read: Function that reads the times from what it prints; it raises ValueError.
    """

    name: str
    runtime: str
    arguments: Callable[[PurePosixPath, int, str, int], list[str]]
    read: Callable[[str], RoundTimes]


def _of_litert(file: PurePosixPath, batch: int, dimension: str, threads: int) -> list[str]:
    return [f"--graph={file}", f"--num_threads={threads}", "--warmup_runs=5", "--num_runs=20"]


def _of_onnxruntime(file: PurePosixPath, batch: int, dimension: str, threads: int) -> list[str]:
    size = ["-f", f"{dimension}:{batch}"] if dimension else []
    return ["-I", "-s", "-m", "duration", "-t", "1", "-x", str(threads), *size, str(file)]


def _read_litert(text: str) -> RoundTimes:
    """Read the last line ``count=50 first=... avg=... median=... p95=...``, in microseconds."""
    lines = [line for line in text.splitlines() if "count=" in line]
    found = dict(re.findall(r"(\w+)=([\d.e+]+)", lines[-1])) if lines else {}
    middle = found.get("median") or found.get("avg")
    if "count" not in found or middle is None:
        raise ValueError("it printed no times")
    p95 = float(found["p95"]) / 1e3 if "p95" in found else None
    return RoundTimes(float(middle) / 1e3, p95, int(found["count"]))


def _read_onnxruntime(text: str) -> RoundTimes:
    """Read lines such as ``P50 Latency: 0.0587 s``, or ``is 0.0587sec`` of old releases."""
    times = dict(re.findall(r"P(50|95) Latency(?: is|:)\s*([\d.e-]+)\s*s", text))
    runs = re.search(r"(?:Total inference requests|Total iterations):\s*(\d+)", text)
    if "50" not in times or runs is None:
        raise ValueError("it printed no times")
    p95 = 1e3 * float(times["95"]) if "95" in times else None
    return RoundTimes(1e3 * float(times["50"]), p95, int(runs[1]))


PROGRAMS = {
    each.name: each
    for each in (
        BenchmarkProgram("benchmark_model", "litert", _of_litert, _read_litert),
        BenchmarkProgram(
            "onnxruntime_perf_test", "onnxruntime", _of_onnxruntime, _read_onnxruntime
        ),
    )
}
"""Known programs by the names of their files."""


class AdbTransport:
    """Agent of an Android device that runs in this process, and commands the device by ``adb``.

    Args:
        device: Device, whose address has the serial number and whose command is the path of the
            program on the device.

    Raises:
        ConfigError: The address is not valid, or the program is unknown.
    """

    def __init__(self, device: AddedDevice) -> None:
        self._serial = device.address.removeprefix(ADB)
        if not _SERIAL.fullmatch(self._serial):
            raise ConfigError(
                f"the address is {device.address!r}; expected adb://SERIAL, as `adb devices` lists"
            )
        path = PurePosixPath(device.command)
        if path.name not in PROGRAMS or not path.is_absolute():
            raise ConfigError(
                f"--command is {device.command!r}; expected the path of "
                f"{' or '.join(PROGRAMS)} on the device, e.g. /data/local/tmp/benchmark_model"
            )
        self._path, self._program = path, PROGRAMS[path.name]
        self._folder = tempfile.TemporaryDirectory()
        self._states: dict[str, JobState] = {}

    def close(self) -> None:
        """Remove the files of this process."""
        self._folder.cleanup()

    def request(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Do what an agent does for a request; a job is done at once."""
        kind, _, name = path.partition("?")[0].removeprefix(f"{PREFIX}/").partition("/")
        try:
            status, answer = self._answer(method, kind, name, body)
        except HwnasError as error:
            status, answer = 422, refusal(422, error).body
        return status, json.dumps(answer).encode()

    def _answer(
        self, method: str, kind: str, name: str, body: bytes
    ) -> tuple[int, Mapping[str, Any]]:
        if (method, kind) == ("GET", "about"):
            return 200, self._about().to_json()
        if (method, kind) == ("PUT", "models"):
            self._stored(name).write_bytes(body)
            return 201, {}
        if (method, kind) == ("PUT", "jobs"):
            job = MeasuringJob.from_json(read_object(body))
            if missing := [model for model in job.models if not self._stored(model).exists()]:
                return 409, {"missing": missing}
            self._states[name] = self._done(job)
            return 200, self._states[name].to_json()
        if name not in self._states:
            return 404, {}
        state = self._states.pop(name) if method == "DELETE" else self._states[name]
        return 200, state.to_json()

    def _stored(self, model: str) -> Path:
        return Path(self._folder.name) / f"{model}.onnx"

    def _about(self) -> AgentDescription:
        from hwnas.deploy.runtimes import RUNTIMES

        runtime = RUNTIMES[self._program.runtime]
        reason = self._missing_program() or runtime.unavailable() or ""
        kinds = {f"cpu-{runtime.name}-{each}": reason for each in runtime.formats}
        system = f"Android {self._property('ro.build.version.release')}"
        machine = {"processor": self._processor(), "system": system}
        versions = {"hwnas": hwnas.__version__, "program": self._program.name}
        processors = {"cpu": machine["processor"]}
        return AgentDescription(machine, {}, processors, kinds, versions, 0, (LATENCY,))

    def _missing_program(self) -> str | None:
        if self._shell("ls", str(self._path)).returncode == 0:
            return None
        return f"there is no {self._path} on the device; push the program there, and chmod +x it"

    def _processor(self) -> str:
        names = ("ro.product.manufacturer", "ro.product.model", "ro.soc.model")
        return " ".join(filter(None, map(self._property, names))) or self._serial

    def _property(self, name: str) -> str:
        return self._shell("getprop", name).stdout.strip()

    def _done(self, job: MeasuringJob) -> JobState:
        try:
            return JobState("done", measurements=self._measured(job))
        except HwnasError as error:
            return JobState("failed", failure=refusal(0, error).body)

    def _measured(self, job: MeasuringJob) -> dict[str, Measurement]:
        from hwnas.deploy.measurement.reference_model import write_reference_model
        from hwnas.deploy.targets.target import Target

        targets = {name: Target.parse(asked.target) for name, asked in job.subjects.items()}
        reference = Path(self._folder.name) / "reference.onnx"
        write_reference_model(reference)
        rounds = {
            name: self._round_of(self._stored(asked.model), targets[name])
            for name, asked in job.subjects.items()
        }
        beside = {
            target: self._round_of(reference, target) for target in map(_plain, targets.values())
        }
        found: dict[str, list[RoundTimes]] = {name: [] for name in rounds}
        anchors: dict[Target, list[RoundTimes]] = {target: [] for target in beside}
        for _ in range(_ROUNDS):
            for target, run in beside.items():
                anchors[target].append(run())
            for name, run in rounds.items():
                found[name].append(run())
        return {
            name: self._measurement(targets[name], times, anchors[_plain(targets[name])])
            for name, times in found.items()
        }

    def _round_of(self, model: Path, target: Target) -> Callable[[], RoundTimes]:
        """Prepare a network, send it to the device, and return a function that times a round."""
        from hwnas.deploy.runtimes.registry import prepared

        if target.device.runtime != self._program.runtime:
            raise DeviceError(
                f"target {target.name}: the device has {self._program.name}, which is for "
                f"{self._program.runtime}"
            )
        check_model(model)
        with tempfile.TemporaryDirectory() as folder:
            file = prepared(model, target, Path(folder))
            there = _FOLDER / f"{digest_of(file.read_bytes())}{file.suffix}"
            if self._shell("ls", str(there)).returncode:
                self._checked("shell", shlex.join(["mkdir", "-p", str(_FOLDER)]))
                self._checked("push", str(file), f"{there}.part")
                self._checked("shell", shlex.join(["mv", f"{there}.part", str(there)]))
        batch, threads = target.device.batch, target.device.threads
        given = self._program.arguments(there, batch, _free_dimension(model), threads)
        words = [str(self._path), *given]

        def run() -> RoundTimes:
            done = self._shell(*words)
            try:
                return self._program.read(done.stdout)
            except ValueError as error:
                said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
                raise ArtifactError(
                    f"{model.name} cannot be timed by {self._program.name}: {error}, but: {said}"
                ) from error

        return run

    def _measurement(
        self, target: Target, times: list[RoundTimes], beside: list[RoundTimes]
    ) -> Measurement:
        from hwnas.deploy.measurement.measurement import Measurement, Quantiles
        from hwnas.deploy.runtimes import RUNTIMES
        from hwnas.deploy.targets.machine import versions

        middles = [each.middle_ms for each in times]
        late = [each.p95_ms for each in times if each.p95_ms is not None]
        wall = replace(Quantiles.of(middles), p95=statistics.median(late) if late else None)
        packages = RUNTIMES[self._program.runtime].packages
        return Measurement(
            target=target.name,
            clock="wall",
            cpu_ms=wall,
            wall_ms=wall,
            n=len(times),
            contended=max(middles) > _UNSTEADY * min(middles),
            anchor_ms=statistics.median(each.middle_ms for each in beside),
            hardware=self._processor(),
            versions={**versions(packages), "program": self._program.name},
            settings={"threads": str(target.device.threads)},
            time=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _shell(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._adb("shell", shlex.join(words))

    def _checked(self, *arguments: str) -> None:
        done = self._adb(*arguments)
        if done.returncode:
            raise DeviceError(f"adb {arguments[0]} failed: {first_line(ValueError(done.stderr))}")

    def _adb(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``adb`` for this device.

        Raises:
            OSError: The device is not connected; a later attempt may succeed.
            DeviceError: ``adb`` is not installed, or a command took too long.
        """
        command = ["adb", "-s", self._serial, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS)
        except FileNotFoundError as error:
            raise DeviceError(
                "adb was not found; install Android's platform tools, e.g. apt-get install adb"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise DeviceError(
                f"adb {arguments[0]} did not end within {_MOST_SECONDS:g} s; check the device"
            ) from error
        lines = done.stderr.strip().splitlines()
        said = lines[-1] if done.returncode and lines else ""
        if said.startswith(("error:", "adb:")) and any(word in said for word in _GONE):
            raise OSError(said)
        return done


def _free_dimension(model: Path) -> str:
    """Return the name of the batch in an ONNX file; empty if its size is fixed."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    known = {each.name for each in graph.initializer}
    [image, *_] = [each for each in graph.input if each.name not in known]
    return str(image.type.tensor_type.shape.dim[0].dim_param)


def _plain(target: Target) -> Target:
    """Return the target of the reference model: one image in single precision."""
    from hwnas.deploy.measurement.fresh_process import reference_target

    return reference_target(target)
