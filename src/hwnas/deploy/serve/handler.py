"""HTTP/1.1 over one connection."""

from __future__ import annotations

import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

from hwnas.deploy.serve.endpoints import Answer, Request, error_answer
from hwnas.deploy.serve.limits import Refusal

if TYPE_CHECKING:
    from hwnas.deploy.serve.server import BundleServer

__all__ = ["Handler"]


class Handler(BaseHTTPRequestHandler):
    """Reads the requests of one connection one after the other, and sends the answers."""

    server: BundleServer
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"
    server_version, sys_version = "hwnas", ""
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body of an answer leave together
    _unread = 0

    def setup(self) -> None:
        """Let no read or write last longer than a client may take."""
        super().setup()
        self.connection.settimeout(self.server.limits.client_s)

    def handle_one_request(self) -> None:
        """The next request, if there is one."""
        self.server.clients.idle(self.connection)
        super().handle_one_request()
        self._skip_body()

    def do_GET(self) -> None:
        """Answer a request without a body, or with one that does not matter."""
        self._respond()

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET

    def handle_expect_100(self) -> bool:
        """Refuse a body that is too large before it is sent."""
        try:
            self._body_length()
        except Refusal as error:
            self.close_connection, self._unread = True, 0
            self._send(error_answer(error.status, str(error), error.headers))
            return False
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong, told as all other errors are."""
        self.close_connection = True
        self._send(error_answer(code, message or HTTPStatus(code).phrase))
        self.server.count("other", code)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the metrics say what happened."""

    def _respond(self) -> None:
        began = time.perf_counter()
        endpoints = self.server.endpoints
        try:
            request = Request(self.command, self.path, self.headers, self._body())
        except Refusal as error:
            self.close_connection = True
            request = Request(self.command, self.path)
            answer = error_answer(error.status, str(error), error.headers)
        else:
            answer = endpoints.answer(request)
        self._send(answer)
        self.server.count(endpoints.known(request.path), answer.status)
        if self.command == "POST":
            self.server.service.seconds.observe(time.perf_counter() - began)

    def _body(self) -> bytes:
        self.server.clients.receiving(self.connection)
        length = self._body_length()
        body = self.rfile.read(length)
        if len(body) < length:
            raise Refusal(408, f"the body ended after {len(body)} of {length} bytes")
        self.server.clients.waiting(self.connection)
        return body

    def _body_length(self) -> int:
        if "Transfer-Encoding" in self.headers:
            raise Refusal(411, "Transfer-Encoding is not known here; send a Content-Length")
        lengths = set(self.headers.get_all("Content-Length", ["0"]))
        text = lengths.pop()
        if lengths or not (text.isascii() and text.isdigit()) or len(text) > 18:
            raise Refusal(400, "Content-Length is no number of bytes")
        most = self.server.limits.body_bytes
        if int(text) > most:
            self._unread = int(text)
            raise Refusal(413, f"the body has {text} bytes; at most {most} are taken")
        return int(text)

    def _send(self, answer: Answer) -> None:
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
        """Read what was refused: a client that still sends would not see the answer."""
        while self._unread > 0 and (part := self.rfile.read1(2**16)):
            self._unread -= len(part)
