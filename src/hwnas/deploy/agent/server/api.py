"""Requests that an agent answers, independent of the transport."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs

from hwnas.deploy.agent.measuring_job import QUANTITIES, MeasuringJob
from hwnas.deploy.agent.private_file import private_folder
from hwnas.deploy.agent.protocol import (
    PREFIX,
    WAIT_S,
    AgentDescription,
    AgentLimits,
    AgentReply,
    AgentRequest,
    read_object,
    refusal,
)
from hwnas.deploy.agent.server.job_queue import JobQueue, Run
from hwnas.deploy.agent.server.model_store import ModelStore
from hwnas.deploy.agent.server.sandbox import Sandbox
from hwnas.deploy.targets.conditions import conditions
from hwnas.deploy.targets.machine import machine, processor_of
from hwnas.deploy.targets.status import devices_here
from hwnas.deploy.targets.target import HARDWARE
from hwnas.errors import ArtifactError, ConfigError, DeviceError, HwnasError, StorageError

__all__ = ["Api"]

_STATUS: dict[type[HwnasError], int] = {
    ConfigError: 400,
    ArtifactError: 422,
    DeviceError: 503,
    StorageError: 507,
}
_NOTHING = AgentReply(404, {"error": "ConfigError", "message": "unknown path or job"})


@dataclass(frozen=True)
class Api:
    """Agent without its server: stored models, queued jobs, and the process that does them.

    Attributes:
        models: Store of the ONNX files that were sent.
        queue: Queue of jobs.
        sandbox: Runner of the jobs.
        limits: Limits on what the agent accepts.
        quantities: What it measures.
    """

    models: ModelStore
    queue: JobQueue
    sandbox: Run
    limits: AgentLimits
    quantities: ClassVar[tuple[str, ...]] = QUANTITIES

    @classmethod
    def of(cls, folder: Path, code: Path, limits: AgentLimits) -> Api:
        """Return an agent that keeps its files in a folder, and resumes the jobs there.

        Args:
            folder: Folder of its files; created if missing.
            code: Location that the process that measures imports hwnas from.
            limits: Limits on what the agent accepts.
        """
        private_folder(folder)
        models = ModelStore(folder / "models", limits)
        sandbox = Sandbox(folder / "work", code, limits, models.copy)
        return cls(models, JobQueue(folder / "jobs", limits), sandbox, limits)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Do jobs one after the other in a thread, until the context ends."""
        worker = threading.Thread(target=self.queue.work, args=(self.sandbox,))
        worker.start()
        try:
            yield
        finally:
            self.queue.close()
            worker.join()

    def answer(self, request: AgentRequest) -> AgentReply:
        """Answer a request; errors become replies too."""
        path, _, query = request.path.partition("?")
        known: dict[tuple[str, str], Callable[[str], AgentReply]] = {
            ("GET", "about"): lambda name: _NOTHING if name else self._about(),
            ("PUT", "models"): lambda name: self._take_in(name, request),
            ("PUT", "jobs"): lambda name: self._submit(name, request),
            ("GET", "jobs"): lambda name: self._state(name, query),
            ("DELETE", "jobs"): self._drop,
        }
        kind, _, name = path.removeprefix(f"{PREFIX}/").partition("/")
        answer = known.get((request.method, kind))
        if answer is None or not path.startswith(f"{PREFIX}/"):
            return _NOTHING
        try:
            return answer(name)
        except HwnasError as error:
            return refusal(next(s for k, s in _STATUS.items() if isinstance(error, k)), error)

    def _about(self) -> AgentReply:
        here = devices_here()
        kinds = {"-".join(each.target.split("-")[:3]): each.reason for each in here}
        processors = {each: processor_of(each) for each in HARDWARE}
        found = {name: value for each in here for name, value in each.details.items()}
        of_machine = machine()
        others = {name: value for name, value in found.items() if name not in of_machine}
        about = AgentDescription(
            of_machine, conditions(), processors, kinds, others, len(self.queue), self.quantities
        )
        return AgentReply(200, about.to_json())

    def _take_in(self, name: str, request: AgentRequest) -> AgentReply:
        self.models.receive(name, request.length, request.read, self.queue.needed())
        return AgentReply(201)

    def _submit(self, name: str, request: AgentRequest) -> AgentReply:
        if not 0 < request.length <= self.limits.json_bytes:
            raise ConfigError(
                f"the job has {request.length} bytes; expected 1 to {self.limits.json_bytes}"
            )
        job = MeasuringJob.from_json(read_object(_whole(request)))
        if job.quantity not in self.quantities:
            raise ConfigError(
                f"this device measures {', '.join(self.quantities)}, not {job.quantity}"
            )
        known = self.queue.state(name)
        missing = [] if known else [each for each in job.models if each not in self.models]
        if missing:
            return AgentReply(409, {"missing": missing})
        return AgentReply(200, self.queue.submit(name, job).to_json())

    def _state(self, name: str, query: str) -> AgentReply:
        try:
            wait_s = float(parse_qs(query).get("wait", ["0"])[0])
        except ValueError:
            wait_s = 0.0
        state = self.queue.state(name, min(wait_s, WAIT_S) if wait_s >= 0 else 0.0)
        return _NOTHING if state is None else AgentReply(200, state.to_json())

    def _drop(self, name: str) -> AgentReply:
        return AgentReply(200) if self.queue.drop(name) else _NOTHING


def _whole(request: AgentRequest) -> bytes:
    content = bytearray()
    while len(content) < request.length:
        chunk = request.read(request.length - len(content))
        if not chunk:
            raise ConfigError(f"the body ended after {len(content)} of {request.length} bytes")
        content += chunk
    return bytes(content)
