"""Protocol between a host and an agent: requests, replies and their contents.

::

    GET    /v1/about          describe the machine, its targets and its conditions
    PUT    /v1/models/SHA256  send an ONNX file
    PUT    /v1/jobs/ID        submit networks to measure; sending it again changes nothing
    GET    /v1/jobs/ID        return the state of a job, after waiting a while for its end
    DELETE /v1/jobs/ID        stop a job, and delete its results

A body is an ONNX file or a JSON object. A refusal is an object with ``error``, the name of an error
of `hwnas.errors`, and ``message``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hwnas.deploy.error_line import first_line
from hwnas.deploy.targets.target import RUNTIMES
from hwnas.errors import (
    ArtifactError,
    ConfigError,
    DeviceError,
    EnergyUnavailable,
    HwnasError,
    StorageError,
)

__all__ = [
    "GREETING",
    "LONGEST_LINE",
    "PREFIX",
    "WAIT_S",
    "AgentDescription",
    "AgentLimits",
    "AgentReply",
    "AgentRequest",
    "read_object",
    "refusal",
    "refused_with",
]

PREFIX = "/v1"
WAIT_S = 20.0
"""Longest time in seconds that an agent waits for the end of a job before it answers."""
GREETING, LONGEST_LINE = b"hwnas agent 1\n", 4096
"""First line of an agent that is reached through pipes, and the longest line in bytes."""

_ERRORS: dict[str, type[HwnasError]] = {
    "ArtifactError": ArtifactError,
    "ConfigError": ConfigError,
    "EnergyUnavailable": EnergyUnavailable,  # before its base class, since the first one counts
    "DeviceError": DeviceError,
    "StorageError": StorageError,
}


@dataclass(frozen=True)
class AgentLimits:
    """Limits on what an agent accepts.

    Attributes:
        model_bytes: Largest size of an ONNX file, in bytes.
        models: Largest number of stored files; new ones replace the oldest.
        models_bytes: Largest total size of stored files, in bytes.
        json_bytes: Largest size of a JSON body, in bytes.
        waiting: Largest number of waiting jobs.
        kept: Largest number of finished jobs whose results are kept; new ones replace the oldest.
        connections: Largest number of open connections.
        network_s: Seconds allowed for each network of a job, and as many again for the job itself.
        memory_bytes: Memory of the process that measures, in bytes.
    """

    model_bytes: int = 512 * 2**20
    models: int = 1000
    models_bytes: int = 4 * 2**30
    json_bytes: int = 2**20
    waiting: int = 1000
    kept: int = 2000
    connections: int = 16
    network_s: float = 120.0
    memory_bytes: int = 2 * 2**30


@dataclass(frozen=True)
class AgentRequest:
    """Authorised request to an agent.

    Attributes:
        method: ``"GET"``, ``"PUT"`` or ``"DELETE"``.
        path: Path that begins with `PREFIX`.
        length: Number of bytes in the body.
        read: Function that returns at most the given number of bytes of the body.
    """

    method: str
    path: str
    length: int
    read: Callable[[int], bytes]


@dataclass(frozen=True)
class AgentReply:
    """Reply of an agent: an HTTP status and a JSON object."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        """Body as sent."""
        return json.dumps(self.body).encode()


def refusal(status: int, error: HwnasError) -> AgentReply:
    """Return a reply for an error, whose message is one line of at most a thousand characters."""
    kind = next((name for name, known in _ERRORS.items() if isinstance(error, known)), None)
    message = " ".join(str(error).split())[:1000]
    return AgentReply(status, {"error": kind or "DeviceError", "message": message})


def refused_with(body: Mapping[str, Any]) -> HwnasError:
    """Return the error that a reply of `refusal` stands for."""
    return _ERRORS.get(str(body.get("error")), DeviceError)(str(body.get("message")))


def read_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object in the given bytes.

    Raises:
        ConfigError: The bytes are not a JSON object, or hold a number that is not finite.
    """
    try:
        found = json.loads(content, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"expected a JSON object: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"expected a JSON object, got a {type(found).__name__}")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


@dataclass(frozen=True)
class AgentDescription:
    """Description of an agent and its machine.

    Attributes:
        machine: Description of the machine, in words, by name.
        conditions: Temperature, frequency and load, where the system shows them.
        processors: Names of processors, by hardware such as ``"cpu"``.
        kinds: Reasons why kinds of targets cannot be used, by hardware, runtime and format such as
            ``"cpu-onnxruntime-fp32"``; empty for usable kinds.
        versions: Versions of hwnas and the runtimes.
        jobs: Number of jobs that wait or run.
        quantities: What it can measure, of `hwnas.deploy.agent.measuring_job.QUANTITIES`.
    """

    machine: Mapping[str, str]
    conditions: Mapping[str, str]
    processors: Mapping[str, str]
    kinds: Mapping[str, str]
    versions: Mapping[str, str]
    jobs: int
    quantities: tuple[str, ...] = ("latency",)  # that of earlier agents, which do not say

    def kinds_of(self, hardware: str) -> dict[str, str]:
        """Return why each runtime and format of some hardware cannot be used; empty if it can."""
        start = f"{hardware}-"
        return {k.removeprefix(start): r for k, r in self.kinds.items() if k.startswith(start)}

    def to_json(self) -> dict[str, Any]:
        """Return the description as a JSON object."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AgentDescription:
        """Return the description that `to_json` wrote, without kinds unknown to this hwnas.

        Raises:
            ArtifactError: The object is damaged.
        """
        try:
            known = [
                f"{hardware}-{name}-{each}"
                for name, runtime in RUNTIMES.items()
                for hardware in runtime.hardware
                for each in runtime.formats
            ]
            kinds = {kind: str(data["kinds"][kind]) for kind in known if kind in data["kinds"]}
            machine, conditions, processors, versions = (
                {str(name): str(value) for name, value in data[part].items()}
                for part in ("machine", "conditions", "processors", "versions")
            )
            quantities = tuple(map(str, data.get("quantities", cls.quantities)))
            jobs = int(data["jobs"])
            return cls(machine, conditions, processors, kinds, versions, jobs, quantities)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(
                f"the agent's description of itself is damaged: {first_line(error)}"
            ) from error
