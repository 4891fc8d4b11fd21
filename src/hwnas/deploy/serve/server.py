"""The server: listens, gives each connection a thread, and ends in good order."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

import torch
from PIL import Image

from hwnas.deploy.bundle import Bundle
from hwnas.deploy.serve.clients import Clients
from hwnas.deploy.serve.endpoints import Endpoints, error_answer
from hwnas.deploy.serve.handler import Handler
from hwnas.deploy.serve.limits import Limits
from hwnas.deploy.serve.memory import return_freed_memory
from hwnas.deploy.serve.metrics import Counter, Gauge, Metric
from hwnas.deploy.serve.service import BatchSettings, Service
from hwnas.errors import ConfigError

__all__ = ["BundleServer", "serve"]

_PARTING_S = 0.5
_POLL_S = 0.1


class BundleServer(ThreadingMixIn, TCPServer):
    """Serves a bundle until it is closed; a context manager that does so in a thread.

    Args:
        service: What answers.
        host: Address to listen on.
        port: To listen on; 0 takes a free one.

    Raises:
        ConfigError: It cannot listen there.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, service: Service, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.service, self.limits = service, service.limits
        self.ending = False
        self.clients = Clients(self.limits.connections, self.limits.client_s)
        self._refused = Counter("hwnas_refused_connections_total", "Connections beyond the limit.")
        connections = Gauge("hwnas_connections", "Open connections.", lambda: len(self.clients))
        metrics: list[Metric] = [connections, self._refused]
        self.endpoints = Endpoints(service, metrics, ready=lambda: not self.ending)
        self._parting: list[tuple[float, socket.socket]] = []
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_S,), daemon=True)
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"cannot listen on {host}, port {port} ({reason}); choose another --host or --port"
            ) from error

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def __enter__(self) -> BundleServer:
        """Begin to answer."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Answer what is under way, and end."""
        self.drain()

    def drain(self) -> bool:
        """Take nothing new, answer what is under way, and end.

        Returns:
            Whether all was answered in the time that there was.
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
        """Give a connection its thread, or send it away."""
        if self.clients.admit(request):
            super().process_request(request, client_address)
        else:
            self._turn_away(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        self.clients.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are none of our business; all else goes to the log."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def service_actions(self) -> None:
        """Between connections: be rid of slow clients, and of those that were sent away."""
        self.clients.cut_overdue()
        now = time.monotonic()
        while self._parting and self._parting[0][0] < now:
            self._parting.pop(0)[1].close()

    def _turn_away(self, client: socket.socket) -> None:
        """Say why, and close a little later: at once, what it has sent would undo the answer."""
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
    bundle: Bundle,
    settings: BatchSettings,
    limits: Limits,
    *,
    host: str,
    port: int,
    name: str | None = None,
    started: Callable[[BundleServer], object] = lambda server: None,
) -> int:
    """Serve a bundle until SIGTERM or Ctrl-C; what is under way then is answered first.

    Args:
        bundle: Verified before anything is answered.
        settings: How requests are put together.
        limits: What clients may do.
        host: Address to listen on.
        port: To listen on; 0 takes a free one.
        name: Of the model, in addresses; the network's id if None.
        started: Called once requests are answered.

    Returns:
        The number of the signal that ended it.

    Raises:
        ArtifactError: The bundle is damaged.
        ConfigError: It cannot listen there.
        DeviceError: This machine has fewer cores than threads are wanted.
    """
    return_freed_memory()
    warnings.simplefilter("error", Image.DecompressionBombWarning)  # the server has its own limits
    torch.set_num_threads(1)  # images are prepared by many threads already
    with _first_signal() as wait:
        service = Service(bundle, settings, limits, name)
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
    """SIGTERM and Ctrl-C are waited for; a second one ends the process as ever."""
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
