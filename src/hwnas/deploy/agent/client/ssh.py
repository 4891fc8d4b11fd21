"""Transport to an agent that a program such as ``ssh`` starts and connects through pipes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import subprocess
import tempfile
import time
from typing import IO, Any

from hwnas.deploy.agent.protocol import GREETING, LONGEST_LINE, AgentLimits
from hwnas.errors import ConfigError, DeviceError

__all__ = ["StdioTransport", "ssh_arguments"]

_MOST_NOISE = 2**16
_ADDRESS = re.compile(
    r"ssh://((?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*)(?::([0-9]{1,5}))?/?"
)


def ssh_arguments(address: str, command: str) -> list[str]:
    """Return the command line that starts an agent on another machine through the system's ssh.

    Args:
        address: ``ssh://user@host`` or ``ssh://user@host:port``.
        command: Command that starts the agent there, without ``serve``.

    Raises:
        ConfigError: The address or the command is not valid.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ConfigError(f"the agent's address is {address!r}; expected ssh://user@host:port")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"the command {command!r} cannot be parsed: {error}") from error
    if not words:
        raise ConfigError("the command that starts the agent is empty; expected e.g. 'hwnas agent'")
    options = ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=15"]
    given = [word for option in options for word in ("-o", option)]
    port = ["-p", found[2]] if found[2] else []
    return ["ssh", "-T", *given, *port, found[1], shlex.join([*words, "serve", "--stdio"])]


class StdioTransport:
    """Transport to an agent that a program starts, and that ends with the program.

    Args:
        arguments: Command line of the program.
    """

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._unread = b""

    def request(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Send a request, after starting the program if it is not running."""
        until = time.monotonic() + timeout_s
        try:
            if self._process is None:
                self._start(until)
            head = {"method": method, "path": path, "length": len(body)}
            self._write(json.dumps(head).encode() + b"\n" + body, until)
            answer: dict[str, Any] = json.loads(self._line(until))
            status, length = int(answer["status"]), int(answer["length"])
            return status, self._exactly(min(length, 2 * AgentLimits().model_bytes), until)
        except (OSError, ValueError, KeyError, TypeError) as error:
            said = self._last_words()
            self.close()
            raise OSError(said or str(error)) from error

    def close(self) -> None:
        """End the program."""
        process, self._process, self._unread = self._process, None, b""
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()
                process.communicate()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _start(self, until: float) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program
        try:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except FileNotFoundError as error:
            self.close()
            raise DeviceError(
                f"the program {self._arguments[0]} was not found; install it, e.g. openssh-client"
            ) from error
        heard = 0
        while (line := self._line(until)) != GREETING:
            heard += len(line)
            if heard > _MOST_NOISE:
                raise ValueError("the answer is not that of an agent")

    def _write(self, content: bytes, until: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        left = memoryview(content)
        while left:
            if not select.select([], [pipe], [], max(0.0, until - time.monotonic()))[1]:
                raise TimeoutError("the agent reads no more data")
            left = left[os.write(pipe, left[:LONGEST_LINE]) :]

    def _line(self, until: float) -> bytes:
        while b"\n" not in self._unread:
            if len(self._unread) > _MOST_NOISE:
                raise ValueError("the answer is not that of an agent")
            self._read_more(until)
        line, _, self._unread = self._unread.partition(b"\n")
        return line + b"\n"

    def _exactly(self, length: int, until: float) -> bytes:
        while len(self._unread) < length:
            self._read_more(until)
        content, self._unread = self._unread[:length], self._unread[length:]
        return content

    def _read_more(self, until: float) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError("no answer in time")
        content = os.read(pipe, 2**16)
        if not content:
            raise ConnectionError("the connection ended")
        self._unread += content

    def _last_words(self) -> str:
        """Return the last line that the program wrote to standard error."""
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read(_MOST_NOISE).decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
