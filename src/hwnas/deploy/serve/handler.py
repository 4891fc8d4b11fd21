"""Handler of HTTP/1.1 requests on one connection."""

from __future__ import annotations

import re
import select
import socket
import time
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from typing import TYPE_CHECKING

from hwnas.deploy.serve.endpoints import HttpRequest, HttpResponse, error_answer
from hwnas.deploy.serve.limits import RequestRefusal
from hwnas.deploy.serve.memory import Reservation
from hwnas.deploy.serve.service import ResourceClaim

if TYPE_CHECKING:
    from hwnas.deploy.serve.server import BundleServer

__all__ = ["Handler"]


_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r?\n")
_MOST_HEAD_BYTES = 2**16
"""Largest size of a request's head in bytes; the memory budget does not count it."""
_MOST_SKIPPED_BYTES = 2**23  # of all headers that the base class would accept
_BLANK = (b"\r\n", b"\n", b"")
_ONCE = (
    "Content-Length", "Content-Type", "Host", "Transfer-Encoding", "Inference-Header-Content-Length"
)  # fmt: skip


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


class Handler(BaseHTTPRequestHandler):
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
        told = ": ".join(filter(None, (message or HTTPStatus(code).phrase, explain)))
        self._send(error_answer(code, told))
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
