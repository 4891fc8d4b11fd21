"""HTTPS server of an agent, which accepts signed requests only.

Every connection is one request. No body is read before the signature is verified, headers are
limited in number and length, and slow clients are disconnected. A request without a valid signature
is answered with 401, whatever its address. Only ``GET /health`` needs no signature; it says that
the agent is up.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hwnas.deploy.agent.protocol import AgentReply, AgentRequest
from hwnas.deploy.agent.server.api import Api
from hwnas.deploy.agent.server.certificate import Certificate
from hwnas.deploy.agent.signing import (
    CHALLENGE,
    DIGEST,
    NONCE,
    SIGNATURE,
    Challenges,
    digest_of,
    reply_signature,
    request_signature,
    same,
)
from hwnas.errors import ConfigError

__all__ = ["AgentServer"]

_HEADER_BYTES, _LINE_BYTES = 16 * 2**10, 4 * 2**10
_GREETING_S = 10.0
"""Seconds allowed for the handshake, and again for the headers."""
_SLOWEST_BYTES_A_SECOND = 50_000
_LINGER_BYTES, _LINGER_S = 2**20, 1.0
_LENGTH = re.compile(r"[0-9]{1,12}")
_HEX = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")


class AgentServer(ThreadingHTTPServer):
    """HTTPS server that answers requests until `shutdown`.

    Args:
        address: Host and port to listen on; port 0 is any free port.
        api: Agent that answers authorised requests.
        key: Key that requests have to be signed with, in hexadecimal.
        certificate: Certificate of this agent.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self, address: tuple[str, int], api: Api, key: str, certificate: Certificate
    ) -> None:
        self.api, self.key = api, key
        self.fingerprint = certificate.fingerprint()
        self.challenges = Challenges()
        self._context = certificate.context()
        self._places = threading.BoundedSemaphore(api.limits.connections)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind the address, without asking a name server for this machine's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close the connection if there are too many."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Encrypt a connection in its own thread, so that others do not wait for its handshake."""
        request.settimeout(_GREETING_S)
        with self._context.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about a broken connection, since anyone can break one."""


class _Input(io.RawIOBase):
    """Input from a connection, limited in bytes and time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.allow(_HEADER_BYTES, _GREETING_S)

    def allow(self, more_bytes: int, seconds: float) -> None:
        """Allow ``more_bytes`` bytes from now on, within ``seconds`` seconds."""
        self._left, self._until = more_bytes, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self._until - time.monotonic()
        if seconds <= 0 or self._left <= 0:
            raise TimeoutError("the client sent too much, or was too slow")
        self._connection.settimeout(seconds)
        with memoryview(buffer) as view:
            count = self._connection.recv_into(view[: min(len(view), self._left)])
        self._left -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection, which is one request."""

    server: AgentServer

    def setup(self) -> None:
        self.connection = self.request
        self._input = _Input(self.connection)
        self.rfile = io.BufferedReader(self._input)
        self.wfile = io.BytesIO()  # `_send` writes whole replies to the connection

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Do nothing, because `handle` answers malformed requests as it does unsigned ones."""

    def handle(self) -> None:
        """Answer the request, unless the client disconnects or is too slow."""
        with contextlib.suppress(OSError, ssl.SSLError):
            self.raw_requestline = self.rfile.readline(_LINE_BYTES + 1)
            whole = 0 < len(self.raw_requestline) <= _LINE_BYTES and self.parse_request()
            if whole and (self.command, self.path) == ("GET", "/health"):
                self._send(200, b'{"status": "up"}', {})
            elif whole and self._is_signed():
                self._answer()
            else:
                self._refuse()
            self._linger()

    def _is_signed(self) -> bool:
        """Return whether a holder of the key signed this request for this agent; reject replays."""
        challenge, nonce = self._header(CHALLENGE, _WORD), self._header(NONCE, _WORD)
        digest, given = self._header(DIGEST, _HEX), self._header(SIGNATURE, _HEX)
        if not (challenge and nonce and digest and given):
            return False
        server = self.server
        right = request_signature(
            server.key, server.fingerprint, challenge, nonce, self.command, self.path, digest
        )
        return same(given, right) and server.challenges.admit(challenge, nonce)

    def _header(self, name: str, pattern: re.Pattern[str]) -> str:
        """Return a header's value if it matches the pattern, else an empty string."""
        value = str(self.headers.get(name, ""))
        return value if pattern.fullmatch(value) else ""

    def _answer(self) -> None:
        length = int(self._header("Content-Length", _LENGTH) or 0)
        self._input.allow(length, _GREETING_S + length / _SLOWEST_BYTES_A_SECOND)
        body = _body(self.rfile.read, length, self._header(DIGEST, _HEX))
        reply = self.server.api.answer(AgentRequest(self.command, self.path, length, body))
        self._reply(reply)

    def _reply(self, reply: AgentReply) -> None:
        content, server = reply.content, self.server
        digest, nonce = digest_of(content), self._header(NONCE, _WORD)
        signature = reply_signature(server.key, server.fingerprint, nonce, reply.status, digest)
        self._send(reply.status, content, {SIGNATURE: signature})

    def _refuse(self) -> None:
        body = json.dumps({"error": "ConfigError", "message": "not signed with the token"})
        self._send(401, body.encode(), {"WWW-Authenticate": "Hwnas"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        lines = {
            **headers,
            CHALLENGE: self.server.challenges.current(),
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            "Connection": "close",
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.connection.settimeout(_GREETING_S + len(content) / _SLOWEST_BYTES_A_SECOND)
        self.connection.sendall(
            f"HTTP/1.1 {status} {responses[status]}\r\n{head}\r\n".encode() + content
        )

    def _linger(self) -> None:
        """Read for a moment longer, because closing at once could discard the reply in transit."""
        self.connection.shutdown(socket.SHUT_WR)
        self._input.allow(_LINGER_BYTES, _LINGER_S)
        while self._input.read(2**16):
            pass


def _body(read: Callable[[int], bytes], length: int, promised: str) -> Callable[[int], bytes]:
    """Return a function that reads a body, and checks at its end that it is the signed one."""
    digest, left = hashlib.sha256(), length

    def more(count: int) -> bytes:
        nonlocal left
        try:
            content = read(min(count, left))
        except OSError as error:  # do not let it look like an error of the disk
            raise ConfigError(f"the body was interrupted: {error}; send it again") from error
        digest.update(content)
        left -= len(content)
        if left == 0 and digest.hexdigest() != promised:
            raise ConfigError("the body does not match its signature; send it again")
        return content

    return more
