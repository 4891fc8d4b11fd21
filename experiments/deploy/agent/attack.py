"""What does an agent answer to hostile clients, without the token and with it?

An agent with small limits runs on this machine. It receives requests that are unsigned, signed with
another token, replayed, tampered with, malformed or oversized. It also receives files that are no
models, models that never end or need all memory, and jobs that ask for too much. The agent must
refuse each of them in time, and must still work correctly in the end.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.command import run_command
from experiments.deploy.agent.attacked import (
    CLOSED,
    Door,
    Memory,
    outcome_of_job,
    watched,
)
from experiments.deploy.agent.hostile_jobs import hostile_jobs, plain_job
from experiments.deploy.agent.hostile_models import hostile_graphs, hostile_uploads
from experiments.deploy.agent.hostile_requests import (
    Attempt,
    Signer,
    everywhere,
    request,
    signed,
    tampered,
    unsigned,
)
from experiments.deploy.agent.outside import OutsideAgent
from experiments.deploy.verdict import end_with
from hwnas.deploy import Target, TimingSettings, measure
from hwnas.deploy.agent.client.added_devices import AddedDevice
from hwnas.deploy.agent.client.client import ask
from hwnas.deploy.agent.client.pairing import add_device
from hwnas.deploy.agent.client.transport import HttpsTransport
from hwnas.deploy.agent.signing import digest_of, key_of
from hwnas.deploy.measurement.reference_model import write_reference_model
from hwnas.errors import HwnasError

__all__ = ["Found", "attack", "judged", "report"]

NAME = "attacked"
HONEST = TimingSettings(warmup=1, rounds=5, round_ms=1.0)
REPLAYED = 20
FINE = "fine"


@dataclass(frozen=True)
class Found:
    """Finding of one attempt.

    Attributes:
        kind: Kind of attack.
        answer: HTTP status, the end of a job, or how the attempt ended without one.
        wrong: Whether the answer is anything but a refusal in time.
        told: Message of the agent, or the bytes sent, where that helps.
    """

    kind: str
    answer: str
    wrong: bool
    told: str = ""


def judged(attempt: Attempt, answer: str, has_token: bool) -> Found:
    """Return the finding of a request: whether the answer refuses it.

    Without the token, 401 is the only correct refusal, since any other would reveal what exists. A
    holder of the token must be told what is wrong.
    """
    statuses = range(400, 500) if has_token else (401,)
    refused = answer.isdigit() and int(answer) in statuses
    right = refused or (answer == CLOSED and not attempt.due)
    return Found(attempt.kind, answer, not right, "" if right else repr(attempt.content[:300]))


class Attack:
    """All attempts on one agent.

    Args:
        agent: Running agent.
        device: Device under which a host has added the agent.
        seconds: Time limit of the agent for a network.
    """

    def __init__(self, agent: OutsideAgent, device: AddedDevice, seconds: float) -> None:
        self._agent, self._device, self._seconds = agent, device, seconds
        self._door = Door(agent.port, 30.0)
        self._door.answer(b"GET /health HTTP/1.1\r\n\r\n")

    def _signer(self, key: str) -> Signer:
        return Signer(key, self._device.certificate, self._door.challenge)

    def everything(self, count: int, until: float) -> Iterator[Found]:
        """Yield the findings of all attempts; stop once the agent is dead.

        Args:
            count: Number of seeded requests at most.
            until: Monotonic time at which these end.
        """
        for part in (self.uninvited, self.replayed, self.jobs, lambda: self.seeded(count, until)):
            for found in part():
                yield found
                if (status := self._agent.process.poll()) is not None:
                    yield Found("the agent", f"ended with status {status}", True, found.kind)
                    return

    def uninvited(self) -> Iterator[Found]:
        """Try each method on each path, without a token and with the wrong one."""
        others = self._signer(key_of("another token"))
        for attempt in [*everywhere("no token", None), *everywhere("another token", others)]:
            yield self._tried(attempt, has_token=False)

    def replayed(self) -> Iterator[Found]:
        """Send valid requests, and replay each at once and once more later."""
        rng, sent = random.Random("replayed"), []
        for _ in range(REPLAYED):
            headers = self._signer(self._device.key)(rng, "GET", "/v1/about")
            sent.append(Attempt("replayed", request("GET", "/v1/about", [*headers.items()])))
            first = self._door.answer(sent[-1].content)
            yield Found("before it is replayed", first, first != "200")
            yield self._tried(sent[-1], has_token=False)
        for attempt in sent:
            yield self._tried(attempt, has_token=False)

    def jobs(self) -> Iterator[Found]:
        """Send files that are no models, hostile models, and jobs that ask for too much."""
        model = self._agent.folder.parent / "reference.onnx"
        write_reference_model(model)
        models = {**hostile_uploads(), **hostile_graphs()}
        right = model.read_bytes()
        sent = [
            *((name, content, plain_job(digest_of(content))) for name, content in models.items()),
            *((name, right, job) for name, job in hostile_jobs(right).items()),
        ]
        for name, content, job in sent:
            answer, told = outcome_of_job(
                HttpsTransport(self._device), content, job, 30.0 + 4 * self._seconds
            )
            refused = answer == "failed" or (answer.isdigit() and 400 <= int(answer) < 500)
            yield Found(name, answer, not refused, told)

    def seeded(self, count: int, until: float) -> Iterator[Found]:
        """Send malformed, oversized and senseless requests, half of them with the token."""
        for seed in range(count):
            if time.monotonic() > until:
                return
            signer = self._signer(self._device.key)
            if seed % 2:
                yield self._tried(signed(seed, signer), has_token=True)
            elif seed % 8:
                yield self._tried(unsigned(seed), has_token=False)
            else:
                yield self._tried(tampered(seed, signer), has_token=False)

    def _tried(self, attempt: Attempt, has_token: bool) -> Found:
        return judged(attempt, self._door.answer(attempt.content, attempt.encrypted), has_token)

    def in_the_end(self) -> dict[str, str]:
        """Return the outcomes of the checks that must still pass after the attack."""
        model = self._agent.folder.parent / "reference.onnx"
        target = Target.parse(f"{NAME}-onnxruntime-fp32-b1-t1")

        def left() -> object:
            found = [*self._agent.folder.glob("jobs/*"), *self._agent.folder.glob("work/*")]
            return [path.name for path in found]

        checks = {
            "health": lambda: self._door.answer(b"GET /health HTTP/1.1\r\n\r\n") != "200",
            "jobs that wait or run": lambda: ask(self._device).jobs,
            "honest measurement": lambda: (
                measure({"a": model}, target, HONEST)["a"].n != HONEST.rounds
            ),
            "files left of jobs": left,
        }
        return {name: _ending(check) for name, check in checks.items()}


def _ending(check: Callable[[], object]) -> str:
    """Run a check; return that it is fine if it finds nothing, or else what is wrong."""
    try:
        found = check()
    except HwnasError as error:
        return str(error)
    return f"wrong: {found}" if found else FINE


def attack(
    folder: Path, count: int, minutes: float, seconds: float, memory_mb: int
) -> dict[str, Any]:
    """Start an agent, make all attempts on it, and return the report.

    Args:
        folder: Folder for the agent and the host.
        count: Number of seeded requests at most.
        minutes: Time for these at most.
        seconds: Time limit of the agent for a network.
        memory_mb: Memory limit of the process that measures.
    """
    began = time.monotonic()
    os.environ["HWNAS_HOME"] = str(folder / "host")
    limits = ["--seconds", f"{seconds:g}", "--memory-mb", str(memory_mb)]
    with OutsideAgent(folder, *limits) as agent:
        device = add_device(NAME, agent.address, agent.token, patience_s=10.0)
        tried, found = Attack(agent, device, seconds), []
        with watched(agent) as memory:
            for each in tried.everything(count, began + 60 * minutes):
                found.append(each)
                if each.wrong:
                    print(f"{each.kind}: {each.answer} {each.told}", flush=True)
            end = tried.in_the_end()
        after = agent.resident_mb()[0]
    return report(found, memory, after, end, time.monotonic() - began)


def report(
    found: Sequence[Found], memory: Memory, after_mb: float, end: dict[str, str], elapsed_s: float
) -> dict[str, Any]:
    """Return the report of an attack."""
    answers: dict[str, Counter[str]] = {}
    for each in found:
        answers.setdefault(each.kind, Counter())[each.answer] += 1
    return {
        "cases": len(found),
        "seconds": round(elapsed_s),
        "wrong": [
            *(asdict(each) for each in found if each.wrong),
            *({"kind": name, "answer": how} for name, how in end.items() if how != FINE),
        ],
        "answers": {kind: dict(sorted(counts.items())) for kind, counts in answers.items()},
        "told": {each.kind: each.told for each in found if each.told and not each.wrong},
        "resident_mb": {**_rounded(memory), "after": round(after_mb, 1)},
        "in_the_end": end,
    }


def _rounded(memory: Memory) -> dict[str, float]:
    return {name: round(value, 1) for name, value in asdict(memory).items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.deploy.agent.attack", description=__doc__
    )
    parser.add_argument(
        "--count", type=int, default=10_000, help="largest number of seeded requests"
    )
    parser.add_argument("--minutes", type=float, default=20, help="time limit without the jobs")
    parser.add_argument(
        "--seconds", type=float, default=5, help="time limit of the agent for a network"
    )
    parser.add_argument("--memory-mb", type=int, default=600, help="its memory limit for a job")
    parser.add_argument("--out", type=Path, help="file for the report, as JSON")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = attack(
            Path(folder),
            arguments.count,
            arguments.minutes,
            arguments.seconds,
            arguments.memory_mb,
        )
    asked = (
        f"{arguments.count} requests, {arguments.seconds:g} s and {arguments.memory_mb} MB a job"
    )
    end_with(found, asked, arguments.out)


if __name__ == "__main__":
    main()
