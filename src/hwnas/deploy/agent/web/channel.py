"""Exchange of commands and results between a job and the page on a device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hwnas.errors import DeviceError

__all__ = ["Channel", "Closed", "Replaced"]

_GLANCE_S = 0.5


class Replaced(DeviceError):
    """Error of a command whose page was opened again, so that its sessions are gone."""


class Closed(DeviceError):
    """Error of a command that is not wanted any more."""


@dataclass
class _Pending:
    """Command that waits for its result."""

    number: int
    command: Mapping[str, Any]
    result: Mapping[str, Any] | None = None


class Channel:
    """Channel between the jobs of one device and its page.

    A page asks for a command again and again, with the result of the one before. A command stays
    until its result is here, so a lost reply costs nothing. When another page of the device asks,
    it takes over, and the command fails with `Replaced`.

    Args:
        patience_s: Seconds that a command waits for a page that does not ask.
        clock: Function that returns seconds.
    """

    def __init__(
        self, patience_s: float = 300.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience_s, self._clock = patience_s, clock
        self._changed = threading.Condition()
        self._page, self._number = "", 0
        self._pending: _Pending | None = None
        self._seen: float | None = None

    def send(
        self, command: Mapping[str, Any], stop: threading.Event, seconds: float
    ) -> Mapping[str, Any]:
        """Send a command to the page, and return its result.

        Args:
            command: JSON object.
            stop: Event that ends the wait.
            seconds: Seconds allowed for the command while the page is open.

        Raises:
            Replaced: The page was opened again in between.
            Closed: ``stop`` was set.
            DeviceError: No page is open for too long, or the command takes too long.
        """
        begun = self._clock()
        with self._changed:
            page = self._page
            self._number += 1
            pending = self._pending = _Pending(self._number, command)
            self._changed.notify_all()
            try:
                while pending.result is None:
                    self._check(page, begun, stop, seconds)
                    self._changed.wait(_GLANCE_S)
                return pending.result
            finally:
                self._pending = None

    def _check(self, page: str, begun: float, stop: threading.Event, seconds: float) -> None:
        if stop.is_set():
            raise Closed("the job was stopped")
        if self._page != page:
            raise Replaced("the page was opened again")
        away = self.away_s
        if away is None or away > self._patience_s:
            raise DeviceError(
                "the page is not open in the browser of the device; open it, keep it visible, and "
                "try again"
            )
        if away < 1 and self._clock() - begun > seconds:
            raise DeviceError(f"the browser did not answer within {seconds:g} s")

    @property
    def away_s(self) -> float | None:
        """Seconds since a page asked; None if none ever did."""
        return None if self._seen is None else self._clock() - self._seen

    def wait_for_page(self, stop: threading.Event) -> None:
        """Wait until a page is open.

        Raises:
            Closed: ``stop`` was set.
            DeviceError: No page is open for too long.
        """
        begun = self._clock()
        with self._changed:
            while self._seen is None or self._clock() - self._seen > self._patience_s:
                if stop.is_set():
                    raise Closed("the job was stopped")
                if self._clock() - begun > self._patience_s:
                    self._check(self._page, begun, stop, 0.0)
                self._changed.wait(_GLANCE_S)

    def poll(
        self, page: str, result: Mapping[str, Any] | None, wait_s: float
    ) -> Mapping[str, Any] | None:
        """Take the result of a page, and return its next command; None if there is none yet.

        Args:
            page: Id of the page, which is new whenever it is loaded.
            result: Result with the ``number`` of its command; None for none.
            wait_s: Longest wait for a command, in seconds.
        """
        until = self._clock() + wait_s
        with self._changed:
            if page != self._page:
                self._page, self._pending = page, None
                self._changed.notify_all()
            self._seen = self._clock()
            pending = self._pending
            if (
                result is not None
                and pending is not None
                and result.get("number") == pending.number
            ):
                pending.result = result
                self._changed.notify_all()
            while self._page == page:
                pending = self._pending
                if pending is not None and pending.result is None:
                    return {**pending.command, "number": pending.number}
                left = until - self._clock()
                if left <= 0:
                    break
                self._changed.wait(min(left, _GLANCE_S))
                self._seen = self._clock()
            return None

    def is_current(self, page: str) -> bool:
        """Return whether a page is the one that does the work."""
        with self._changed:
            return page == self._page
