"""Server of the page, and of what the page asks for: pairing, commands and models.

Every reply carries headers that let the page load only what this server sends, and that isolate it
from other pages, which browsers require for threads and a fine clock. Requests of paired pages are
signed with the page's key, over a number of this server's session and a count that only grows, so
they can be neither forged nor replayed. A page gets only the models of its own running job.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hwnas.deploy.agent.protocol import read_object
from hwnas.deploy.agent.server.guarded import (
    GREETING_S,
    SLOWEST_BYTES_A_SECOND,
    GuardedHandler,
    GuardedServer,
)
from hwnas.deploy.agent.signing import digest_of, is_digest, new_secret, same
from hwnas.deploy.agent.web.browser import Browser, BrowserFacts
from hwnas.deploy.agent.web.host_api import BrowserApi, HostApi
from hwnas.deploy.runtimes.ort_web_files import RuntimeFiles
from hwnas.errors import ConfigError, HwnasError

__all__ = ["PageServer", "PairingCode"]

_PAGE = "hwnas.deploy.agent.web", "page"
_FILES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/worker.js": ("worker.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}
_TYPES = {".mjs": "text/javascript; charset=utf-8", ".wasm": "application/wasm"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval' blob:; "
    "worker-src 'self' blob:; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_SIGNATURE, _COUNT = "X-Hwnas-Signature", "X-Hwnas-Count"
_LENGTH, _NUMBER, _HEX = (re.compile(p) for p in (r"[0-9]{1,7}", r"[0-9]{1,16}", r"[0-9a-f]{64}"))
_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # without characters that look alike
_CODE_LENGTH, _WRONG_CODES = 8, 5
_BODY_BYTES = 64 * 2**10
_POLL_S = 20.0
_IDLE_S = 60.0
_REQUESTS = 10_000  # of one connection


class PairingCode:
    """Code that a user copies from the terminal to the page, which proves who opened it.

    It is used once. After some wrong ones it is replaced.

    Args:
        tell: Function that is called with each new code.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._lock, self._wrong = tell, threading.Lock(), 0
        self._renew()

    def use(self, code: str) -> bool:
        """Return whether a code is right; then there is a new one."""
        plain = re.sub(r"[\s-]", "", code).upper()
        with self._lock:
            right = hmac.compare_digest(plain.encode(), self._code.encode())
            self._wrong = 0 if right else self._wrong + 1
            if right or self._wrong >= _WRONG_CODES:
                self._renew()
            return right

    def _renew(self) -> None:
        self._wrong = 0
        self._code = "".join(secrets.choice(_ALPHABET) for _ in range(_CODE_LENGTH))
        self._tell(f"{self._code[:4]}-{self._code[4:]}")


@dataclass
class _Session:
    """Knowledge of this server about its pages since it was started.

    Attributes:
        number: Random number that signatures contain.
        counts: Last count of each browser's signed requests.
    """

    number: str = field(default_factory=new_secret)
    counts: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, name: str, count: int) -> bool:
        """Return whether a count is larger than all before."""
        with self.lock:
            if count <= self.counts.get(name, -1):
                return False
            self.counts[name] = count
            return True


class PageServer(GuardedServer):
    """Server of the page until `shutdown`.

    Args:
        address: Host and port to listen on; port 0 is any free port.
        hosts: Agents of the browsers.
        files: Files of ONNX Runtime Web.
        code: Pairing code.
        context: TLS context; None for HTTP.
    """

    def __init__(
        self,
        address: tuple[str, int],
        hosts: HostApi,
        files: RuntimeFiles,
        code: PairingCode,
        context: Any = None,
    ) -> None:
        self.hosts, self.files, self.code = hosts, files, code
        self.session = _Session()
        self.scheme = "http" if context is None else "https"
        super().__init__(address, _Handler, 8 * hosts.limits.connections, context)


class _Handler(GuardedHandler):
    """Handler of one connection, over which a page sends its requests one after the other."""

    server: PageServer

    def handle(self) -> None:
        """Answer the requests of a connection until it is idle for too long."""
        try:
            for _ in range(_REQUESTS):
                whole = self.read_head()
                if not whole and not self.raw_requestline:
                    return
                self.respond(whole)
                if not whole:
                    return
                self.allow(16 * 2**10, _IDLE_S)
        except OSError:  # the client is gone or too slow; ssl.SSLError is one, too
            return

    def respond(self, whole: bool) -> None:
        """Answer a request."""
        if not whole or not self._is_same_origin():
            self._refuse(400, "not a request of the page")
            return
        path = urlsplit(self.path).path
        if self.command == "GET" and path in _FILES:
            name, kind = _FILES[path]
            content = resources.files(_PAGE[0]).joinpath(_PAGE[1], name).read_bytes()
            self._reply(200, content, kind)
        elif self.command == "GET" and path == "/session":
            about = {"session": self.server.session.number, "version": self.server.files.version}
            self._reply_json(200, about)
        elif self.command == "GET" and path.startswith("/ort/"):
            self._send_runtime(path.removeprefix("/ort/"))
        elif self.command == "POST" and path == "/pair":
            self._pair()
        elif self.command == "POST" and path.startswith("/poll/"):
            self._signed(path.removeprefix("/poll/"), self._poll)
        elif self.command == "POST" and path.startswith("/models/"):
            name, _, model = path.removeprefix("/models/").partition("/")
            self._signed(name, lambda api, body: self._send_model(api, model))
        else:
            self._refuse(404, "unknown path")

    def _is_same_origin(self) -> bool:
        """Return whether a request comes from this server's own page, as far as headers tell."""
        origin, host = self.headers.get("Origin"), self.headers.get("Host")
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        own = origin is None or urlsplit(origin).netloc == host
        return own and (self.command == "GET" or site == "same-origin")

    def _pair(self) -> None:
        try:
            asked = read_object(self._body())
            facts = BrowserFacts.from_json(asked.get("facts") or {})
            name, code = str(asked.get("name", "")), str(asked.get("code", ""))
            self.server.hosts.browsers.folder(name)  # checks the name
            if not self.server.code.use(code):
                self._refuse(403, "the code is wrong; it is shown where hwnas agent web runs")
                return
            browser = Browser(name, digest_of(new_secret().encode()), facts)
            self.server.hosts.pair(browser)
        except HwnasError as error:
            self._refuse(400, str(error))
            return
        with self.server.session.lock:
            self.server.session.counts.pop(name, None)
        self._reply_json(200, {"name": name, "key": browser.key})

    def _signed(self, name: str, answer: Callable[[BrowserApi, bytes], None]) -> None:
        """Answer a request, if it is signed with the key of the browser of this name."""
        try:
            body, api = self._body(), self.server.hosts.of(name)
        except HwnasError as error:
            self._refuse(400, str(error))
            return
        if api is None or not self._is_signed(name, api.browser.key, body):
            self._refuse(401, "not paired, or not signed with the key; pair the browser again")
            return
        answer(api, body)

    def _is_signed(self, name: str, key: str, body: bytes) -> bool:
        given, count = self.headers.get(_SIGNATURE, ""), self.headers.get(_COUNT, "")
        if not _HEX.fullmatch(given) or not _NUMBER.fullmatch(count):
            return False
        parts = self.server.session.number, self.command, self.path, count, digest_of(body)
        text = "\n".join(parts).encode()
        right = hmac.new(bytes.fromhex(key), text, hashlib.sha256).hexdigest()
        return same(given, right) and self.server.session.admit(name, int(count))

    def _poll(self, api: BrowserApi, body: bytes) -> None:
        try:
            asked = read_object(body)
            page, result = asked.get("page"), asked.get("result")
            if not isinstance(page, str) or not 0 < len(page) <= 64:
                raise ConfigError("the request names no page")
            if result is not None and not isinstance(result, dict):
                raise ConfigError("the result is not an object")
            if asked.get("facts") is not None:
                api.latest[0] = BrowserFacts.from_json(asked["facts"])
        except HwnasError as error:
            self._refuse(400, str(error))
            return
        if asked.get("goes_on") is True and not api.channel.is_current(page):
            self._refuse(409, "another page of this device took over")
            return
        command = api.channel.poll(page, result, _POLL_S)
        waiting = len(api.queue)
        self._reply_json(200, {"command": command, "jobs": waiting})

    def _send_model(self, api: BrowserApi, model: str) -> None:
        if not is_digest(model) or model not in api.timing.allowed:
            self._refuse(404, "this model is not part of the running job")
            return
        self._send_file(api.models.path(model), "application/octet-stream")

    def _send_runtime(self, name: str) -> None:
        path = self.server.files.path(name)
        if path is None:
            self._refuse(404, "unknown file")
            return
        self._send_file(path, _TYPES[path.suffix], {"Cache-Control": "max-age=86400"})

    def _send_file(self, path: Path, kind: str, headers: Mapping[str, str] | None = None) -> None:
        try:
            content = path.read_bytes()
        except OSError:
            self._refuse(404, "the file is gone")
            return
        self._reply(200, content, kind, headers)

    def _body(self) -> bytes:
        text = str(self.headers.get("Content-Length", ""))
        length = int(text) if _LENGTH.fullmatch(text) else -1
        if not 0 <= length <= _BODY_BYTES:
            raise ConfigError(f"the body has {text[:20]!r} bytes; expected at most {_BODY_BYTES}")
        self.allow(length, GREETING_S + length / SLOWEST_BYTES_A_SECOND)
        return self.rfile.read(length)

    def _refuse(self, status: int, message: str) -> None:
        self._reply_json(status, {"message": message})

    def _reply_json(self, status: int, body: Mapping[str, Any]) -> None:
        self._reply(status, json.dumps(body).encode(), "application/json")

    def _reply(
        self, status: int, content: bytes, kind: str, headers: Mapping[str, str] | None = None
    ) -> None:
        known = {"Cache-Control": "no-store", **(headers or {})}
        self.send(status, content, {**_HEADERS, **known, "Content-Type": kind})
