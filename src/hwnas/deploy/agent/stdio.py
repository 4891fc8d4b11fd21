"""Agent on the standard input and output of a program such as ``ssh``.

It serves devices without an open port. The agent is started through ssh, which authenticates the
host and encrypts, and it ends with the connection. A message is a line of JSON, followed by as many
bytes as the line says. The first line is a greeting, since shells may print text of their own
before it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from typing import IO

from hwnas.deploy.agent.pack import packed_code
from hwnas.deploy.agent.protocol import GREETING, LONGEST_LINE, AgentRequest
from hwnas.deploy.agent.server.api import Api
from hwnas.deploy.agent.server.serve import AgentOptions, folder_of_its_own

__all__ = ["serve_stdio"]

_OTHER_AGENT_S = 20.0


def serve_stdio(options: AgentOptions) -> None:
    """Answer one host on standard input and output until it disconnects.

    Raises:
        DeviceError: Another agent holds the folder for longer than the waiting time.
    """
    folder, source, sink = options.place, sys.stdin.buffer, sys.stdout.buffer
    with folder_of_its_own(folder, _OTHER_AGENT_S):
        api = Api.of(folder, packed_code(folder), options.limits)
        with api.working(), contextlib.suppress(BrokenPipeError):
            sink.write(GREETING)
            sink.flush()
            while line := source.readline(LONGEST_LINE):
                _answer(api, line, source.read, sink)


def _answer(api: Api, line: bytes, read: Callable[[int], bytes], sink: IO[bytes]) -> None:
    asked = json.loads(line)
    left = int(asked["length"])

    def body(count: int) -> bytes:
        nonlocal left
        content = read(min(count, left))
        left -= len(content)
        return content

    reply = api.answer(AgentRequest(str(asked["method"]), str(asked["path"]), left, body))
    while left and body(2**16):
        pass  # skip an unread body, which comes before the next request
    content = reply.content
    sink.write(json.dumps({"status": reply.status, "length": len(content)}).encode() + b"\n")
    sink.write(content)
    sink.flush()
