"""The open connections, and how long each may keep us waiting."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time

__all__ = ["Clients"]


class Clients:
    """Keeps a deadline for each connection that has to send something.

    Args:
        most: Connections at the same time.
        patience_s: A request has to be there so long after it could have begun.
    """

    def __init__(self, most: int, patience_s: float) -> None:
        self._most, self._patience_s = most, patience_s
        self._deadlines: dict[socket.socket, float] = {}
        self._idle: set[socket.socket] = set()
        self._sent_to: set[socket.socket] = set()
        self._ending = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """How many are connected."""
        return len(self._deadlines)

    def admit(self, client: socket.socket) -> bool:
        """Whether one more may connect; it is counted from now on."""
        with self._changed:
            if len(self._deadlines) >= self._most or self._ending:
                return False
            self._deadlines[client] = math.inf
            return True

    def idle(self, client: socket.socket) -> None:
        """It may send a request."""
        with self._changed:
            self._sent_to.discard(client)
            self._idle.add(client)
            self._deadlines[client] = time.monotonic() + self._patience_s
            if self._ending:
                _stop(client)

    def receiving(self, client: socket.socket) -> None:
        """It has begun to send a request."""
        with self._changed:
            self._idle.discard(client)
            self._sent_to.discard(client)
            self._deadlines[client] = time.monotonic() + self._patience_s

    def sending(self, client: socket.socket) -> None:
        """It gets an answer, and has to take it."""
        with self._changed:
            self._sent_to.add(client)
            self._deadlines[client] = time.monotonic() + self._patience_s

    def waiting(self, client: socket.socket) -> None:
        """It has sent a request, and it is our turn."""
        with self._changed:
            self._deadlines[client] = math.inf

    def remove(self, client: socket.socket) -> None:
        """It is gone."""
        with self._changed:
            self._deadlines.pop(client, None)
            self._sent_to.discard(client)
            self._idle.discard(client)
            self._changed.notify_all()

    def cut_overdue(self) -> None:
        """Let reading from those that are too slow end, or sending to them."""
        now = time.monotonic()
        with self._changed:
            for client, deadline in self._deadlines.items():
                if deadline < now:
                    _stop(client, socket.SHUT_RDWR if client in self._sent_to else socket.SHUT_RD)

    def end(self, patience_s: float) -> bool:
        """Admit nobody, send away who is idle, and wait for the others.

        Returns:
            Whether all are gone.
        """
        with self._changed:
            self._ending = True
            for client in self._idle:
                _stop(client)
            return self._changed.wait_for(lambda: not self._deadlines, patience_s)


def _stop(client: socket.socket, way: int = socket.SHUT_RD) -> None:
    """Its thread reads an end of file, and can still answer unless that is stopped as well."""
    with contextlib.suppress(OSError):  # it has hung up already
        client.shutdown(way)
