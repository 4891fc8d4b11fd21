"""Client of agents: queries their state, and has networks measured on their machines."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.deploy.agent.client.added_devices import AddedDevice, added_names, read_added
from hwnas.deploy.agent.client.transport import Transport, open_transport
from hwnas.deploy.agent.measuring_job import LATENCY, JobState, MeasuringJob, MeasuringRequest
from hwnas.deploy.agent.protocol import PREFIX, WAIT_S, AgentDescription, read_object, refused_with
from hwnas.deploy.agent.signing import digest_of
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.onnx.graph import external_files, read_whole_model
from hwnas.errors import ArtifactError, DeviceError, EnergyUnavailable, HwnasError

if TYPE_CHECKING:
    from hwnas.deploy.measurement.latency_timer import TimingSettings
    from hwnas.deploy.measurement.measurement import TimedNetwork
    from hwnas.deploy.targets.target import Target

__all__ = [
    "AgentClient",
    "ask",
    "connected",
    "devices_elsewhere",
    "measure_elsewhere",
    "reading_elsewhere",
]

_ANSWER_S, _UPLOAD_S = 30.0, 600.0
_GLANCE_S = 2.0
_STATUS_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_MOST_TIMES = 3


def measure_elsewhere(
    name: str,
    subjects: Mapping[str, TimedNetwork],
    settings: TimingSettings,
    progress: Callable[[float], None] | None,
) -> dict[str, Measurement]:
    """Measure networks on a remote device, in one session there.

    Args:
        name: Name of the device.
        subjects: Files and targets of this device, by names that the caller chooses.
        settings: Settings that say how much to time.
        progress: Function called with the completed share, from 0 to 1.

    Returns:
        A measurement for each name, as `hwnas.deploy.measurement.timing.measure_together` returns.

    Raises:
        ArtifactError: A file is damaged, or its target cannot run it.
        DeviceError: The device does not answer, is not the one that was added, or has a target that
            cannot be used.
    """
    device = read_added(name)
    with connected(device) as client:
        found = client.measured(subjects, settings, progress)
    for measurement in found.values():
        _check_processor(device, measurement.hardware)
    return found


def reading_elsewhere(
    quantity: str, model: Path, target: Target, repeats: int = 0
) -> Mapping[str, Any]:
    """Measure another quantity than latency of a network on a remote device.

    Args:
        quantity: What to measure, of `hwnas.deploy.agent.measuring_job.QUANTITIES`.
        model: ONNX file.
        target: Target of the device.
        repeats: Number of processes; 0 for the usual number.

    Returns:
        JSON object of the result.

    Raises:
        ArtifactError: The file is damaged, or the target cannot run it.
        DeviceError: The device does not answer, is not the one that was added, cannot measure the
            quantity, or has a target that cannot be used.
    """
    device = read_added(target.device.hardware)
    with connected(device) as client:
        about = client.about()
        _check_processor(device, about.processors.get(device.hardware, ""))
        if quantity not in about.quantities:
            kind = EnergyUnavailable if quantity == "energy" else DeviceError
            raise kind(
                f"{device.name} measures {', '.join(about.quantities)}, not {quantity}; start the "
                "agent of this hwnas there, which `hwnas agent pack` writes"
            )
        return client.reading(quantity, model, target, repeats)


def _check_processor(device: AddedDevice, now: str) -> None:
    if now != device.processor:
        raise DeviceError(
            f"{device.name} had the processor {device.processor!r} when it was added, and now has "
            f"{now!r}; run: hwnas devices remove {device.name}, and add it again"
        )


@contextlib.contextmanager
def connected(device: AddedDevice) -> Iterator[AgentClient]:
    """Yield a client of a device's agent, and close its connection at the end."""
    transport = open_transport(device)
    try:
        yield AgentClient(device, transport)
    finally:
        transport.close()


def ask(device: AddedDevice, timeout_s: float = _STATUS_S) -> AgentDescription:
    """Return an agent's description of itself, without retries.

    Raises:
        DeviceError: The agent does not answer in time, or is not the one that was added.
    """
    with connected(replace(device, patience_s=0.0)) as client:
        return client.about(timeout_s)


def devices_elsewhere() -> Iterator[tuple[str, str, str, Mapping[str, str]]]:
    """Yield the name of each added device, a kind of target, why it cannot be used, and details.

    The reason is empty for a usable kind. A device whose file is damaged is yielded once, with an
    empty kind.
    """
    devices = []
    for name in added_names():
        try:
            devices.append(read_added(name))
        except HwnasError as error:
            yield name, "", str(error), {}
    with ThreadPoolExecutor(max(1, len(devices))) as pool:
        answers = pool.map(_asked, devices)
        for device, answer in zip(devices, answers, strict=True):
            if isinstance(answer, HwnasError):
                details = {"agent": device.address, "processor": device.processor}
                yield from ((device.name, kind, str(answer), details) for kind in device.kinds)
                continue
            kinds = answer.kinds_of(device.hardware)
            details = {
                "agent": f"{device.address}, {answer.jobs} jobs wait or run",
                **answer.machine,
                **answer.versions,
                **answer.conditions,
            }
            yield from ((device.name, kind, why, details) for kind, why in kinds.items())


def _asked(device: AddedDevice) -> AgentDescription | HwnasError:
    try:
        return ask(device)
    except HwnasError as error:
        return error


class AgentClient:
    """Client of one agent, which repeats requests that are not answered.

    Args:
        device: Address, keys and patience of the device.
        transport: Transport to its agent.
    """

    def __init__(self, device: AddedDevice, transport: Transport) -> None:
        self._device, self._transport = device, transport

    def about(self, timeout_s: float = _ANSWER_S) -> AgentDescription:
        """Return the agent's description of itself."""
        return AgentDescription.from_json(self._expect(200, "GET", "about", timeout_s=timeout_s))

    def measured(
        self,
        subjects: Mapping[str, TimedNetwork],
        settings: TimingSettings,
        progress: Callable[[float], None] | None = None,
    ) -> dict[str, Measurement]:
        """Measure networks as one job, and return their measurements by name."""
        state = self._measured(subjects, settings, LATENCY, 0, progress)
        return {
            name: replace(state.measurements[name], target=subject.target.name)
            for name, subject in subjects.items()
        }

    def reading(
        self, quantity: str, model: Path, target: Target, repeats: int
    ) -> Mapping[str, Any]:
        """Measure another quantity of one network, and return it as a JSON object."""
        from hwnas.deploy.measurement.latency_timer import TimingSettings
        from hwnas.deploy.measurement.measurement import TimedNetwork

        subjects = {model.name: TimedNetwork(model, target)}
        state = self._measured(subjects, TimingSettings(), quantity, repeats)
        found = state.readings[model.name]
        return {**found, "target": target.name} if "target" in found else found

    def _measured(
        self,
        subjects: Mapping[str, TimedNetwork],
        settings: TimingSettings,
        quantity: str,
        repeats: int,
        progress: Callable[[float], None] | None = None,
    ) -> JobState:
        """Have networks measured as one job, and return its final state."""
        paths = {subject.model: _digest_of_model(subject.model) for subject in subjects.values()}
        asked = {
            name: MeasuringRequest(paths[subject.model], self._there(subject.target))
            for name, subject in subjects.items()
        }
        files = {digest: path for path, digest in paths.items()}
        state = self._done(MeasuringJob(asked, settings, quantity, repeats), files, progress)
        if state.state == "failed":
            raise self._told(refused_with(state.failure), subjects, files)
        return state

    def _done(
        self, job: MeasuringJob, files: Mapping[str, Path], progress: Callable[[float], None] | None
    ) -> JobState:
        """Have a job done, even if the connection breaks or the agent restarts in between."""
        id_ = uuid.uuid4().hex  # identifies the job when it is sent again
        try:
            for _ in range(_MOST_TIMES):
                self._submit(id_, job, files)
                if (state := self._over(id_, progress)) is not None:
                    return state
        finally:
            with contextlib.suppress(HwnasError):
                impatient = AgentClient(replace(self._device, patience_s=0.0), self._transport)
                impatient._request("DELETE", f"jobs/{id_}")
        raise DeviceError(
            f"{self._device.name} lost its job {_MOST_TIMES} times; check that its disk has free "
            "space"
        )

    def _submit(self, id_: str, job: MeasuringJob, files: Mapping[str, Path]) -> None:
        """Queue a job, and send the models that the agent does not have yet."""
        body = json.dumps(job.to_json()).encode()
        for _ in range(_MOST_TIMES):
            status, answer = self._request("PUT", f"jobs/{id_}", body)
            if status != 409:
                self._check(200, status, answer)
                return
            for model in answer.get("missing", []):
                content = _content(files[model])
                self._expect(201, "PUT", f"models/{model}", content, _UPLOAD_S)
        raise DeviceError(
            f"{self._device.name} does not keep the models that were sent; check its disk"
        )

    def _over(self, id_: str, progress: Callable[[float], None] | None) -> JobState | None:
        """Wait for the end of a job; return None if the agent does not know the job."""
        wait_s = WAIT_S if progress is None else _GLANCE_S
        while True:
            path = f"jobs/{id_}?wait={wait_s:g}"
            status, answer = self._request("GET", path, timeout_s=wait_s + _ANSWER_S)
            if status == 404:
                return None
            self._check(200, status, answer)
            state = JobState.from_json(answer)
            if progress is not None and state.state != "failed":
                progress(1.0 if state.is_over else state.share)
            if state.is_over:
                return state

    def _expect(
        self, right: int, method: str, path: str, body: bytes = b"", timeout_s: float = _ANSWER_S
    ) -> dict[str, Any]:
        status, answer = self._request(method, path, body, timeout_s)
        self._check(right, status, answer)
        return answer

    def _check(self, right: int, status: int, answer: Mapping[str, Any]) -> None:
        if status != right:
            raise self._named(refused_with(answer))

    def _request(
        self, method: str, path: str, body: bytes = b"", timeout_s: float = _ANSWER_S
    ) -> tuple[int, dict[str, Any]]:
        """Send a request, and repeat it until the device's ``patience_s`` is over."""
        until, pause_s = time.monotonic() + self._device.patience_s, _FIRST_PAUSE_S
        while True:
            try:
                status, content = self._transport.request(
                    method, f"{PREFIX}/{path}", body, timeout_s
                )
                return status, read_object(content)
            except OSError as error:
                if time.monotonic() + pause_s > until:
                    raise self._gone(error) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _gone(self, error: OSError) -> DeviceError:
        device = self._device
        waited = f" for {device.patience_s:g} s" if device.patience_s else ""
        return DeviceError(
            f"{device.name} at {device.address} does not answer{waited} ({error}); check "
            "that the machine is on and its agent runs"
        )

    def _named(self, error: HwnasError) -> HwnasError:
        return type(error)(f"{self._device.name}: {error}")

    def _told(
        self, error: HwnasError, subjects: Mapping[str, TimedNetwork], files: Mapping[str, Path]
    ) -> HwnasError:
        """Return the agent's error with this machine's names of files and targets."""
        message = str(error)
        for digest, path in files.items():
            message = message.replace(f"{digest}.onnx", str(path)).replace(digest, str(path))
        for subject in subjects.values():
            message = message.replace(self._there(subject.target), subject.target.name)
        return self._named(type(error)(message))

    def _there(self, target: Target) -> str:
        """Return the name of a target on the agent's machine."""
        return f"{self._device.hardware}{target.name.removeprefix(target.device.hardware)}"


def _digest_of_model(path: Path) -> str:
    return digest_of(_content(path))


def _content(path: Path) -> bytes:
    """Return an ONNX file as sent: with all weights inside, even if they lie in other files.

    Raises:
        ArtifactError: The file does not exist or is damaged.
    """
    if not path.is_file():
        raise ArtifactError(f"there is no ONNX file {path}; give the path of an existing one")
    try:
        if external_files(path):
            content: bytes = read_whole_model(path).SerializeToString()
        else:
            content = path.read_bytes()
    except ArtifactError:
        raise
    except Exception as error:  # protobuf's errors have no other common base class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ArtifactError(f"{path} is not an ONNX file: {reason}") from error
    return content
