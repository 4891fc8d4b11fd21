"""HTTP/1.1 server of a bundle or cascade: a thread a connection, checked requests, and limits."""

from __future__ import annotations

import contextlib
import re
import select
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

import torch
from PIL import Image

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.caching.prediction_cache import PredictionCache
from hwnas.deploy.cascades.cascade import Cascade
from hwnas.deploy.serve.clients import Clients
from hwnas.deploy.serve.endpoints import Endpoints, HttpRequest, HttpResponse, error_answer
from hwnas.deploy.serve.limits import RequestRefusal, ServerLimits
from hwnas.deploy.serve.memory import Reservation, return_freed_memory
from hwnas.deploy.serve.metrics import Counter, Gauge, Metric
from hwnas.deploy.serve.service import BatchSettings, ResourceClaim, Service
from hwnas.errors import ConfigError

__all__ = ["BundleServer", "serve"]

_PARTING_S = 0.5
_POLL_S = 0.1
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r?\n")
_MOST_HEAD_BYTES = 2**16
"""Largest size of a request's head in bytes; the memory budget does not count it."""
_MOST_SKIPPED_BYTES = 2**23  # of all headers that the base class would accept
_BLANK = (b"\r\n", b"\n", b"")
_ONCE = (
    "Content-Length", "Content-Type", "Host", "Transfer-Encoding", "Inference-Header-Content-Length"
)  # fmt: skip


class BundleServer(ThreadingMixIn, TCPServer):
    """HTTP server of a bundle; as a context manager it serves in a thread until the context ends.

    Args:
        service: Service that answers the requests.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.

    Raises:
        ConfigError: The server cannot listen there.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, service: Service, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.service, self.limits = service, service.limits
        self.ending = False
        self.clients = Clients(self.limits.connections, self.limits.client_s)
        self._refused = Counter(
            "hwnas_refused_connections_total", "Connections refused beyond the limit."
        )
        connections = Gauge("hwnas_connections", "Open connections.", lambda: len(self.clients))
        metrics: list[Metric] = [connections, self._refused]
        self.endpoints = Endpoints(service, metrics, ready=lambda: not self.ending)
        self._parting: list[tuple[float, socket.socket]] = []
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_S,), daemon=True)
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"cannot listen on {host}, port {port} ({reason}); choose another --host or --port"
            ) from error

    @property
    def url(self) -> str:
        """URL of the server."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def __enter__(self) -> BundleServer:
        """Start answering requests."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Answer the requests in progress, and end."""
        self.drain()

    def drain(self) -> bool:
        """Accept nothing new, answer the requests in progress, and end.

        Returns:
            Whether all requests were answered within the time limit.
        """
        self.ending = True
        self.shutdown()
        self.server_close()
        done = self.clients.end(self.limits.drain_s)
        for _, client in self._parting:
            client.close()
        self.service.close()
        return done

    def count(self, path: str, status: int) -> None:
        """Count an answer."""
        self.service.requests.add(1, path, str(status))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or reject the connection if there are too many."""
        if self.clients.admit(request):
            super().process_request(request, client_address)
        else:
            self._turn_away(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        self.clients.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a request, unless it is an `OSError`, as when a client disconnects."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def service_actions(self) -> None:
        """Disconnect slow clients, and close rejected connections, between new connections."""
        self.clients.cut_overdue()
        now = time.monotonic()
        while self._parting and self._parting[0][0] < now:
            self._parting.pop(0)[1].close()

    def _turn_away(self, client: socket.socket) -> None:
        """Send an answer with the reason, and close the connection a little later.

        If the connection were closed at once, data that the client sent would discard the answer.
        """
        self._refused.add()
        body = error_answer(503, "too many connections; try again").body
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            client.setblocking(False)
            client.send(head.encode() + body)
            client.shutdown(socket.SHUT_WR)
        self._parting.append((time.monotonic() + _PARTING_S, client))


def serve(
    model: Bundle | Cascade,
    settings: BatchSettings,
    limits: ServerLimits,
    *,
    host: str,
    port: int,
    name: str | None = None,
    cache: PredictionCache | None = None,
    artifact: str | None = None,
    started: Callable[[BundleServer], object] = lambda server: None,
) -> int:
    """Serve a bundle or cascade until SIGTERM or Ctrl-C; requests in progress are answered first.

    Args:
        model: Bundle or cascade to serve; it is verified before any request is answered.
        settings: Settings of how requests are batched.
        limits: Limits on what clients may request.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        name: Name of the model in addresses; its id if None.
        cache: Cache of outputs for images that were seen before; None computes all.
        artifact: Name of the bundle's artifact that computes; the first one if None.
        started: Function called with the server once it answers requests.

    Returns:
        The number of the signal that ended the server.

    Raises:
        ArtifactError: The model is damaged.
        ConfigError: The server cannot listen there, or the service cannot be set up; see `Service`.
        DeviceError: This machine has fewer cores than the requested threads.
    """
    return_freed_memory()
    warnings.simplefilter("error", Image.DecompressionBombWarning)  # the server has its own limits
    torch.set_num_threads(1)  # many threads preprocess images already
    with _first_signal() as wait:
        service = Service(model, settings, limits, name, cache, artifact)
        try:
            server = BundleServer(service, host, port)
        except ConfigError:
            service.close()
            raise
        with server:
            started(server)
            return wait()


@contextlib.contextmanager
def _first_signal() -> Iterator[Callable[[], int]]:
    """Yield a function that waits for SIGTERM or Ctrl-C; a second one ends the process as usual."""
    came: list[int] = []
    event = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: object) -> None:
        came.append(number)
        restore()
        event.set()

    for number in before:
        signal.signal(number, note)

    def wait() -> int:
        event.wait()
        return came[0]

    try:
        yield wait
    finally:
        restore()


class _Lines:
    """Reader of the lines of a request's head, which records the first line that is not a header.

    Attributes:
        broken: First line that is not a header; None if there is none.
        cut: Whether the client stopped before the end of the head.
        unused_bytes: Number of bytes that the head may still take.
    """

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self.broken: bytes | None = None
        self.cut = False
        self.unused_bytes = _MOST_HEAD_BYTES

    def readline(self, limit: int = -1) -> bytes:
        """Read a line.

        Raises:
            HTTPException: The head is too long.
        """
        line = self._file.readline(limit)
        self.unused_bytes -= len(line)
        if self.unused_bytes < 0:
            raise HTTPException(f"at most {_MOST_HEAD_BYTES} bytes are accepted")
        self.cut |= not line.endswith(b"\n")
        if self.broken is None and line not in _BLANK and not _HEADER.fullmatch(line):
            self.broken = line
        return line


class _Handler(BaseHTTPRequestHandler):
    """Handler that reads the requests of one connection in turn, and sends the answers."""

    server: BundleServer
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"
    server_version, sys_version = "hwnas", ""
    disable_nagle_algorithm = True
    wbufsize = -1  # send head and body of an answer together
    _unread = 0

    def setup(self) -> None:
        """Limit the time of each read and write to the time that a client may take."""
        super().setup()
        self.connection.settimeout(self.server.limits.client_s)

    def handle_one_request(self) -> None:
        """Handle the next request, if there is one."""
        self.server.clients.idle(self.connection)
        super().handle_one_request()
        self._skip_body()

    def parse_request(self) -> bool:
        """Read the head of a request, and refuse it if a header is damaged or given twice.

        The base class would not treat the lines after a damaged one as headers, and would wait for
        a body of another length than the client sends. It would also accept an incomplete line as a
        whole one.
        """
        whole = self.rfile
        lines = self._lines = _Lines(whole)
        self.rfile = lines  # type: ignore[assignment]
        try:
            parsed = super().parse_request()
        finally:
            self.rfile = whole
        if lines.unused_bytes < 0:
            self._unread = _MOST_SKIPPED_BYTES
        if parsed and lines.cut:
            self.send_error(408, "the head of the request is incomplete")
            return False
        if parsed and (problem := self._problem()):
            self.send_error(400, problem)
            return False
        return parsed

    def _problem(self) -> str:
        """Return the problem of the headers; empty if there is none."""
        if (broken := self._lines.broken) is not None:
            return f"a header is damaged: {broken[:80].decode('latin-1').strip()!r}"
        for name in _ONCE:
            if len(self.headers.get_all(name, [])) > 1:
                return f"{name} is given more than once"
        if "Content-Length" in self.headers and "Transfer-Encoding" in self.headers:
            return "Content-Length and Transfer-Encoding are both given"
        return ""

    def do_GET(self) -> None:
        """Answer a request of any method."""
        self._respond()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET

    def handle_expect_100(self) -> bool:
        """Refuse a body that is too large before the client sends it."""
        if self._problem():
            return True  # `parse_request` refuses the request
        try:
            self._body_length()
        except RequestRefusal as error:
            self.close_connection, self._unread = True, 0
            self._send(error_answer(error.status, str(error), error.headers))
            self.server.count("other", error.status)
            return False
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error found by the base class in the format of all other errors."""
        self.close_connection = True
        text = ": ".join(filter(None, (message or HTTPStatus(code).phrase, explain)))
        self._send(error_answer(code, text))
        self.server.count("other", code)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing, because the metrics count the requests."""

    def _respond(self) -> None:
        began = time.perf_counter()
        service = self.server.service
        try:
            with service.claim(self._is_connected) as claim, self._reserved() as reserved:
                answer = self._answer(claim)
                reserved.shrink(0)  # the body is freed, and only the answer is left of the work
                claim.shrink(len(answer.body))
                self._send(answer)
        except RequestRefusal as error:  # there is no memory for the body, or it did not arrive
            self.close_connection = True
            answer = error_answer(error.status, str(error), error.headers)
            self._send(answer)
        self.server.count(self.server.endpoints.known(self.path.partition("?")[0]), answer.status)
        if self.command == "POST":
            service.seconds.observe(time.perf_counter() - began)

    def _reserved(self) -> Reservation:
        """Reserve memory for the body."""
        length = self._body_length()
        self.server.clients.waiting(self.connection)
        try:
            return self.server.service.memory.reserve(
                "bodies", length, f"a body of {length} bytes", self._is_connected
            )
        except RequestRefusal:
            self._unread = length
            raise

    def _answer(self, claim: ResourceClaim) -> HttpResponse:
        """Read the body and answer the request; only the answer is kept afterwards."""
        body = self._body()
        return self.server.endpoints.answer(
            HttpRequest(self.command, self.path, self.headers, body, claim)
        )

    def _body(self) -> bytes:
        length = self._body_length()
        self.server.clients.receiving(self.connection)
        body = self.rfile.read(length)
        if len(body) < length:
            raise RequestRefusal(408, f"the body ended after {len(body)} of {length} bytes")
        self.server.clients.waiting(self.connection)
        return body

    def _is_connected(self) -> bool:
        """Return whether the client still waits for its answer.

        A client that has closed its sending side counts as disconnected.
        """
        poll = select.poll()
        try:
            poll.register(self.connection, select.POLLIN)
            if not (events := poll.poll(0)):
                return True
            if events[0][1] & ~select.POLLIN:
                return False
            return bool(self.connection.recv(1, socket.MSG_PEEK))
        except (OSError, ValueError):
            return False

    def _body_length(self) -> int:
        if "Transfer-Encoding" in self.headers:
            raise RequestRefusal(411, "Transfer-Encoding is not supported; send a Content-Length")
        text = self.headers.get("Content-Length", "0")
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            raise RequestRefusal(400, "Content-Length is not a number of bytes")
        most = self.server.limits.body_bytes
        if int(text) > most:
            self._unread = int(text)
            raise RequestRefusal(413, f"the body has {text} bytes; at most {most} are accepted")
        return int(text)

    def _send(self, answer: HttpResponse) -> None:
        self.server.clients.sending(self.connection)
        if self.server.ending:
            self.close_connection = True
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _skip_body(self) -> None:
        """Read a refused body, because a client that still sends would not see the answer."""
        if self._unread > 0:
            self.server.clients.receiving(self.connection)
            self.wfile.flush()
        while self._unread > 0 and (part := self.rfile.read1(2**16)):
            self._unread -= len(part)
