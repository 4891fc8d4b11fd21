"""What a host and an agent say to each other: requests, replies and what they hold.

::

    GET    /v1/about          what the machine is, which targets it has, how it is doing
    PUT    /v1/models/SHA256  an ONNX file
    PUT    /v1/jobs/ID        networks to time; sending it again changes nothing
    GET    /v1/jobs/ID        how far it is; waits a while for news
    DELETE /v1/jobs/ID        stop it, and forget its results

A body is an ONNX file or a JSON object. A refusal is an object with ``error``, the name of an error
of `hwnas.errors`, and ``message``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hwnas.deploy.device import FORMATS, RUNS_ON
from hwnas.deploy.first_line import first_line
from hwnas.errors import ArtifactError, ConfigError, DeviceError, HwnasError, StorageError

__all__ = [
    "GREETING",
    "LONGEST_LINE",
    "PREFIX",
    "WAIT_S",
    "About",
    "Limits",
    "Reply",
    "Request",
    "read_object",
    "refusal",
    "refused_with",
]

PREFIX = "/v1"
WAIT_S = 20.0
"""An agent answers at the latest after so many seconds that a job is as it was."""
GREETING, LONGEST_LINE = b"hwnas agent 1\n", 4096
"""Of an agent that is reached through pipes: its first line, and how long a line may be."""

_ERRORS: dict[str, type[HwnasError]] = {
    "ArtifactError": ArtifactError,
    "ConfigError": ConfigError,
    "DeviceError": DeviceError,
    "StorageError": StorageError,
}


@dataclass(frozen=True)
class Limits:
    """What an agent takes on.

    Attributes:
        model_bytes: Size of an ONNX file.
        models: Files that are kept; the oldest make way for new ones.
        models_bytes: Their sizes together.
        json_bytes: Size of a JSON body.
        waiting: Jobs that wait.
        kept: Finished jobs whose results are kept; the oldest make way for new ones.
        connections: Connections at a time.
        network_s: Seconds that each network of a job may take, and as many again for the job.
        memory_bytes: Memory of the process that measures.
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
class Request:
    """What an agent is asked, by somebody who may ask.

    Attributes:
        method: ``"GET"``, ``"PUT"`` or ``"DELETE"``.
        path: Begins with `PREFIX`.
        length: Bytes of the body.
        read: Gives up to so many bytes of the body.
    """

    method: str
    path: str
    length: int
    read: Callable[[int], bytes]


@dataclass(frozen=True)
class Reply:
    """What it answers: a status as HTTP has them, and a JSON object."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        """The body as it is sent."""
        return json.dumps(self.body).encode()


def refusal(status: int, error: HwnasError) -> Reply:
    """An error as a reply, one line of at most a thousand characters."""
    kind = next((name for name, known in _ERRORS.items() if isinstance(error, known)), None)
    message = " ".join(str(error).split())[:1000]
    return Reply(status, {"error": kind or "DeviceError", "message": message})


def refused_with(body: Mapping[str, Any]) -> HwnasError:
    """The inverse of `refusal`."""
    return _ERRORS.get(str(body.get("error")), DeviceError)(str(body.get("message")))


def read_object(content: bytes) -> dict[str, Any]:
    """The JSON object that some bytes are.

    Raises:
        ConfigError: They are none, or hold a number that is not finite.
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
class About:
    """An agent and its machine.

    Attributes:
        machine: In words, by name.
        conditions: Temperature, frequency and load, where the system shows them.
        processors: What computes, by hardware such as ``"cpu"``.
        kinds: Why not, by hardware, runtime and format such as ``"cpu-onnxruntime-fp32"``; empty
            where usable.
        versions: Of hwnas and the runtimes.
        jobs: How many wait or run.
    """

    machine: Mapping[str, str]
    conditions: Mapping[str, str]
    processors: Mapping[str, str]
    kinds: Mapping[str, str]
    versions: Mapping[str, str]
    jobs: int

    def kinds_of(self, hardware: str) -> dict[str, str]:
        """Why not, by runtime and format on one of its kinds of hardware."""
        start = f"{hardware}-"
        return {k.removeprefix(start): r for k, r in self.kinds.items() if k.startswith(start)}

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> About:
        """The inverse of `to_json`; kinds that this hwnas does not know are left out.

        Raises:
            ArtifactError: It is damaged.
        """
        try:
            known = [
                f"{hardware}-{runtime}-{each}"
                for runtime, formats in FORMATS.items()
                for hardware in RUNS_ON[runtime]
                for each in formats
            ]
            kinds = {kind: str(data["kinds"][kind]) for kind in known if kind in data["kinds"]}
            machine, conditions, processors, versions = (
                {str(name): str(value) for name, value in data[part].items()}
                for part in ("machine", "conditions", "processors", "versions")
            )
            return cls(machine, conditions, processors, kinds, versions, int(data["jobs"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(
                f"what the agent says of itself is damaged: {first_line(error)}"
            ) from error
