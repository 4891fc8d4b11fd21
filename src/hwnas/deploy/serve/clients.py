"""Registry of the open connections, with a deadline for each."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time

__all__ = ["Clients"]


class Clients:
    """Registry of open connections, with a deadline for each that has to send or receive something.

    Args:
        most: Largest number of open connections.
        patience_s: Longest time for a client to send a request or to receive an answer, in seconds.
    """

    def __init__(self, most: int, patience_s: float) -> None:
        self._most, self._patience_s = most, patience_s
        self._deadlines: dict[socket.socket, float] = {}
        self._idle: set[socket.socket] = set()
        self._sent_to: set[socket.socket] = set()
        self._ending = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._deadlines)

    def admit(self, client: socket.socket) -> bool:
        """Register a connection, and return whether it was admitted.

        It is rejected if there are too many, or if the server is ending.
        """
        with self._changed:
            if len(self._deadlines) >= self._most or self._ending:
                return False
            self._deadlines[client] = math.inf
            return True

    def idle(self, client: socket.socket) -> None:
        """Record that a client may send a request."""
        with self._changed:
            self._sent_to.discard(client)
            self._idle.add(client)
            self._deadlines[client] = time.monotonic() + self._patience_s
            if self._ending:
                _stop(client)

    def receiving(self, client: socket.socket) -> None:
        """Record that a client has begun to send a request."""
        with self._changed:
            self._idle.discard(client)
            self._sent_to.discard(client)
            self._deadlines[client] = time.monotonic() + self._patience_s

    def sending(self, client: socket.socket) -> None:
        """Record that an answer is being sent, which the client has to receive."""
        with self._changed:
            self._sent_to.add(client)
            self._deadlines[client] = time.monotonic() + self._patience_s

    def waiting(self, client: socket.socket) -> None:
        """Record that a client has sent a request and waits for the server."""
        with self._changed:
            self._deadlines[client] = math.inf

    def remove(self, client: socket.socket) -> None:
        """Remove a closed connection."""
        with self._changed:
            self._deadlines.pop(client, None)
            self._sent_to.discard(client)
            self._idle.discard(client)
            self._changed.notify_all()

    def cut_overdue(self) -> None:
        """Stop reading from clients that are past their deadline, or sending to them."""
        now = time.monotonic()
        with self._changed:
            for client, deadline in self._deadlines.items():
                if deadline < now:
                    _stop(client, socket.SHUT_RDWR if client in self._sent_to else socket.SHUT_RD)

    def end(self, patience_s: float) -> bool:
        """Admit no more clients, disconnect idle ones, and wait for the others.

        Returns:
            Whether all clients are gone.
        """
        with self._changed:
            self._ending = True
            for client in self._idle:
                _stop(client)
            return self._changed.wait_for(lambda: not self._deadlines, patience_s)


def _stop(client: socket.socket, way: int = socket.SHUT_RD) -> None:
    """Shut down reading from a client, or sending too.

    The client's thread then reads an end of file. It can still answer unless sending is shut down
    too.
    """
    with contextlib.suppress(OSError):  # the client has disconnected already
        client.shutdown(way)
