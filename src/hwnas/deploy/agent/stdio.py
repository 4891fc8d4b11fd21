"""An agent at the other end of a program's standard input and output, such as ``ssh``.

For devices without an open port: the agent is started through ssh, which says who may do so and
encrypts, and it ends with the connection. A message is a line of JSON, then as many bytes as that
says; the first line is a greeting, since shells may print words of their own before it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from typing import IO

from hwnas.deploy.agent.api import Api
from hwnas.deploy.agent.pack import packed_code
from hwnas.deploy.agent.protocol import GREETING, LONGEST_LINE, Request
from hwnas.deploy.agent.serve import AgentOptions, folder_of_its_own

__all__ = ["serve_stdio"]

_OTHER_AGENT_S = 20.0


def serve_stdio(options: AgentOptions) -> None:
    """Answer one host on standard input and output until it goes away.

    Raises:
        DeviceError: Another agent works in the folder, for longer than is waited.
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

    reply = api.answer(Request(str(asked["method"]), str(asked["path"]), left, body))
    while left and body(2**16):
        pass  # what was refused unread stands before the next request
    content = reply.content
    sink.write(json.dumps({"status": reply.status, "length": len(content)}).encode() + b"\n")
    sink.write(content)
    sink.flush()
