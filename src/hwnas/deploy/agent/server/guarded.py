"""Guarded server: TLS, limits on the number, sizes and speed of requests.

Headers are limited in number and length, slow clients are disconnected, and there is a limit on
open connections.
"""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from hwnas.errors import DeviceError

__all__ = [
    "GREETING_S",
    "SLOWEST_BYTES_A_SECOND",
    "GuardedHandler",
    "GuardedServer",
    "bound",
    "running",
]

S = TypeVar("S", bound="GuardedServer")

_HEADER_BYTES, _LINE_BYTES = 16 * 2**10, 4 * 2**10
GREETING_S = 10.0
"""Seconds allowed for the handshake, and again for the headers."""
SLOWEST_BYTES_A_SECOND = 50_000
_LINGER_BYTES, _LINGER_S = 2**20, 1.0


class GuardedServer(ThreadingHTTPServer):
    """Server that answers requests until `shutdown`, each connection in its own thread.

    Args:
        address: Host and port to listen on; port 0 is any free port.
        handler: Handler of a connection.
        connections: Largest number of open connections.
        context: TLS context; None for a server without encryption.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[GuardedHandler],
        connections: int,
        context: ssl.SSLContext | None,
    ) -> None:
        self._context = context
        self._places = threading.BoundedSemaphore(connections)
        super().__init__(address, handler)

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
        request.settimeout(GREETING_S)
        if self._context is None:
            super().finish_request(request, client_address)
            return
        with self._context.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about a broken connection, since anyone can break one."""


def bound(make: Callable[[tuple[str, int]], S], host: str, port: int, remedy: str) -> S:
    """Return a server that listens on a host and a port.

    Args:
        make: Function of the address that makes the server.
        host: Address to listen on.
        port: Port; 0 is any free port.
        remedy: Options that give another address, for the message.

    Raises:
        DeviceError: The address is not available.
    """
    try:
        return make((host, port))
    except OSError as error:
        raise DeviceError(
            f"cannot listen on {host} port {port}: {error.strerror}; give another {remedy}"
        ) from error


@contextlib.contextmanager
def running(server: GuardedServer) -> Iterator[None]:
    """Answer requests in a thread until the context ends."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


class _Input(io.RawIOBase):
    """Input from a connection, limited in bytes and time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.allow(_HEADER_BYTES, GREETING_S)

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


class GuardedHandler(BaseHTTPRequestHandler):
    """Handler of a connection; a subclass defines `respond`, which answers a request."""

    _input: _Input

    def setup(self) -> None:
        """Limit what is read from the connection."""
        self.connection = self.request
        self._input = _Input(self.connection)
        self.rfile = io.BufferedReader(self._input)
        self.wfile = io.BytesIO()  # `send` writes whole replies to the connection

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Do nothing, because `handle` tells `respond` of malformed requests."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, since anyone can send anything."""

    def handle(self) -> None:
        """Answer the request, unless the client disconnects or is too slow."""
        with contextlib.suppress(OSError, ssl.SSLError):
            self.respond(self.read_head())
            self.linger()

    def respond(self, whole: bool) -> None:
        """Answer a request.

        Args:
            whole: Whether the request's line and headers are well-formed.
        """
        raise NotImplementedError

    def read_head(self) -> bool:
        """Read the line and the headers of a request; return whether they are well-formed."""
        self.raw_requestline = self.rfile.readline(_LINE_BYTES + 1)
        return 0 < len(self.raw_requestline) <= _LINE_BYTES and self.parse_request()

    def allow(self, more_bytes: int, seconds: float) -> None:
        """Allow the client to send ``more_bytes`` bytes within ``seconds`` seconds."""
        self._input.allow(more_bytes, seconds)

    def send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole reply."""
        lines = {**headers, "Content-Length": str(len(content))}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.connection.settimeout(GREETING_S + len(content) / SLOWEST_BYTES_A_SECOND)
        self.connection.sendall(
            f"HTTP/1.1 {status} {responses[status]}\r\n{head}\r\n".encode() + content
        )

    def linger(self) -> None:
        """Read for a moment longer, because closing at once could discard the reply in transit."""
        self.connection.shutdown(socket.SHUT_WR)
        self._input.allow(_LINGER_BYTES, _LINGER_S)
        while self._input.read(2**16):
            pass
