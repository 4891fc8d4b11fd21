"""HTTP server of a bundle: listens, gives each connection a thread, and shuts down gracefully."""

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

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.serve.clients import Clients
from hwnas.deploy.serve.endpoints import Endpoints, error_answer
from hwnas.deploy.serve.handler import Handler
from hwnas.deploy.serve.limits import ServerLimits
from hwnas.deploy.serve.memory import return_freed_memory
from hwnas.deploy.serve.metrics import Counter, Gauge, Metric
from hwnas.deploy.serve.service import BatchSettings, Service
from hwnas.errors import ConfigError

__all__ = ["BundleServer", "serve"]

_PARTING_S = 0.5
_POLL_S = 0.1


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
            super().__init__((host, port), Handler)
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
    bundle: Bundle,
    settings: BatchSettings,
    limits: ServerLimits,
    *,
    host: str,
    port: int,
    name: str | None = None,
    started: Callable[[BundleServer], object] = lambda server: None,
) -> int:
    """Serve a bundle until SIGTERM or Ctrl-C; requests in progress are answered first.

    Args:
        bundle: Bundle to serve; it is verified before any request is answered.
        settings: Settings of how requests are batched.
        limits: Limits on what clients may request.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        name: Name of the model in addresses; the network's id if None.
        started: Function called with the server once it answers requests.

    Returns:
        The number of the signal that ended the server.

    Raises:
        ArtifactError: The bundle is damaged.
        ConfigError: The server cannot listen there, or the service cannot be set up; see `Service`.
        DeviceError: This machine has fewer cores than the requested threads.
    """
    return_freed_memory()
    warnings.simplefilter("error", Image.DecompressionBombWarning)  # the server has its own limits
    torch.set_num_threads(1)  # many threads preprocess images already
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
