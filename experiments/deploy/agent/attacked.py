"""Attacker's view of an agent: its answers, the outcome of jobs, and its memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.deploy.agent.outside import OutsideAgent
from hwnas.deploy.agent.client.transport import HttpsTransport
from hwnas.deploy.agent.signing import CHALLENGE, digest_of

__all__ = ["CLOSED", "NO_AGENT", "NO_ANSWER", "Door", "Memory", "outcome_of_job", "watched"]

CLOSED, NO_ANSWER, NO_AGENT = "closed", "no answer", "no agent"
_ENDLESS = b" ..."
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
_CHALLENGE = re.compile(rb"\r\n%s: ([^\r]*)\r\n" % CHALLENGE.encode())


class Door:
    """Client of the agent's port that can send any bytes.

    Args:
        port: Port on this machine.
        patience_s: Seconds within which the whole answer must arrive.
    """

    def __init__(self, port: int, patience_s: float) -> None:
        self._port, self._patience_s = port, patience_s
        self.challenge = ""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    def answer(self, content: bytes, encrypted: bool = True) -> str:
        """Send bytes; return the answer's status, or how the connection ended without an answer."""
        until = time.monotonic() + self._patience_s
        try:
            plain = socket.create_connection(("127.0.0.1", self._port), self._patience_s)
        except OSError:
            return NO_AGENT
        with plain:
            try:
                reply = self._sent(plain, content, encrypted, until)
            except TimeoutError:
                return NO_ANSWER
            except OSError:  # the connection broke off
                return CLOSED
        if found := _CHALLENGE.search(reply):
            self.challenge = found[1].decode()
        if reply.endswith(_ENDLESS):
            return f"{NO_ANSWER} to its end: {reply[:20]!r}"
        status = _STATUS.match(reply)
        if status is None and reply and encrypted:
            return f"{reply[:40]!r}"
        return status[1].decode() if status else CLOSED

    def _sent(self, plain: socket.socket, content: bytes, encrypted: bool, until: float) -> bytes:
        """Send all bytes, half-close the connection, and return all that comes back."""
        connection = self._context.wrap_socket(plain) if encrypted else plain
        with connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
                connection.sendall(content)
                with socket.socket(fileno=os.dup(connection.fileno())) as same:
                    same.shutdown(socket.SHUT_WR)
            reply = b""
            while True:
                connection.settimeout(max(until - time.monotonic(), 1e-3))
                try:
                    more = connection.recv(2**16)
                except TimeoutError:
                    if not reply:
                        raise
                    return reply + _ENDLESS
                except OSError:  # the bytes that came before may be an answer
                    return reply
                if not more:
                    return reply
                reply += more


def outcome_of_job(
    transport: HttpsTransport, model: bytes, asked: Mapping[str, Any], seconds: float
) -> tuple[str, str]:
    """Send a model and a job that uses it; return the status that refuses it, or the job's end.

    Args:
        transport: Transport that signs with the token.
        model: Model that is sent first.
        asked: Job as JSON.
        seconds: Time within which the job must be over.

    Returns:
        The status, the state, or that there is none; and the agent's message.
    """
    path = f"/v1/jobs/{uuid.uuid4().hex}"
    body = json.dumps(asked).encode()
    requests = [("PUT", f"/v1/models/{digest_of(model)}", model), ("PUT", path, body)]
    until = time.monotonic() + seconds
    try:
        for method, to, content in requests:
            status, reply = transport.request(method, to, content, seconds)
            if status not in (200, 201):
                return str(status), _told(json.loads(reply))
        while time.monotonic() < until:
            _, reply = transport.request("GET", f"{path}?wait=5", b"", seconds)
            state = json.loads(reply)
            if state["state"] in ("done", "failed"):
                return state["state"], _told(state["failure"])
        return NO_ANSWER, f"after {seconds:g} s"
    except TimeoutError as error:
        return NO_ANSWER, str(error)
    except OSError as error:
        return CLOSED, str(error)
    finally:
        with contextlib.suppress(OSError):
            transport.request("DELETE", path, b"", seconds)


def _told(refusal: Mapping[str, Any]) -> str:
    return f"{refusal.get('error', '')}: {str(refusal.get('message', ''))[:200]}"


@dataclass
class Memory:
    """Resident memory in MB.

    Attributes:
        before: Memory of the agent at the beginning.
        most: Highest memory of the agent.
        most_of_jobs: Highest memory of the processes that the agent started.
    """

    before: float
    most: float = 0.0
    most_of_jobs: float = 0.0


@contextlib.contextmanager
def watched(agent: OutsideAgent, every_s: float = 0.05) -> Iterator[Memory]:
    """Sample an agent's memory continuously until the context ends."""
    memory, ended = Memory(agent.resident_mb()[0]), threading.Event()

    def look() -> None:
        while not ended.wait(every_s):
            own, jobs = agent.resident_mb()
            memory.most = max(memory.most, own)
            memory.most_of_jobs = max(memory.most_of_jobs, jobs)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield memory
    finally:
        ended.set()
        thread.join()
