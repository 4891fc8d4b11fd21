"""Memory budget shared by all requests, so that many large ones cannot take all memory."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Literal

from hwnas.deploy.serve.limits import RequestRefusal

__all__ = ["MemoryBudget", "Reservation", "return_freed_memory"]

_GLANCE_S = 0.1
_MMAP_THRESHOLD, _MMAP_BYTES = -3, 2**20  # M_MMAP_THRESHOLD

Pool = Literal["bodies", "work"]


class MemoryBudget:
    """Bytes that requests may take at the same time, reserved before they are allocated.

    A quarter is for bodies, the rest for the work on them. The pools are separate because a request
    holds its body while it waits for memory to work in. In a single pool, waiting bodies could
    block one another for ever.

    Args:
        total_bytes: Bytes for all requests together.
        wait_s: Seconds that a request waits for others to give memory back.
    """

    def __init__(self, total_bytes: int, wait_s: float) -> None:
        self.total_bytes, self._wait_s = total_bytes, wait_s
        self._limits: dict[Pool, int] = {
            "bodies": total_bytes // 4,
            "work": total_bytes - total_bytes // 4,
        }
        self._used: dict[Pool, int] = {"bodies": 0, "work": 0}
        self._changed = threading.Condition()

    @property
    def used_bytes(self) -> int:
        """Number of bytes reserved now."""
        return sum(self._used.values())

    def limit(self, pool: Pool) -> int:
        """Return the number of bytes that a single request may take from a pool."""
        return self._limits[pool]

    def reserve(
        self, pool: Pool, size: int, what: str, is_wanted: Callable[[], bool] = lambda: True
    ) -> Reservation:
        """Reserve memory, and wait until it is free if necessary.

        Args:
            pool: Pool to take the memory from.
            size: Number of bytes.
            what: Name of what takes the memory, as the subject of an error message.
            is_wanted: Function that returns whether to go on waiting.

        Raises:
            Refusal: 413 if the pool is smaller than that, 503 if the memory is not free in time.
        """
        limit = self._limits[pool]
        if size > limit:
            raise RequestRefusal(
                413,
                f"{what} needs {_mb(size)} MB of memory, and one request may use {_mb(limit)} MB; "
                "send a smaller request, or start the server with larger --memory-mb",
            )
        until = time.monotonic() + self._wait_s
        with self._changed:
            while self._used[pool] + size > limit:
                left = until - time.monotonic()
                if left <= 0 or not is_wanted():
                    raise RequestRefusal(
                        503,
                        f"{what} needs {_mb(size)} MB of memory, and other requests use "
                        f"{_mb(self._used[pool])} of {_mb(limit)} MB; try again",
                        Retry_After="2",
                    )
                self._changed.wait(min(left, _GLANCE_S))
            self._used[pool] += size
        return Reservation(self, pool, size)

    def _give_back(self, pool: Pool, size: int) -> None:
        with self._changed:
            self._used[pool] -= size
            self._changed.notify_all()


class Reservation:
    """Reserved bytes, given back at the end of the context."""

    def __init__(self, budget: MemoryBudget, pool: Pool, size: int) -> None:
        self._budget, self._pool, self._size = budget, pool, size
        self._lock = threading.Lock()

    def __enter__(self) -> Reservation:
        """Keep the bytes until the end of the context."""
        return self

    def __exit__(self, *error: object) -> None:
        """Give all bytes back."""
        self.shrink(0)

    def shrink(self, size: int) -> None:
        """Give back all but ``size`` bytes."""
        with self._lock:
            freed = max(0, self._size - size)
            self._size -= freed
        if freed:
            self._budget._give_back(self._pool, freed)

    def split(self) -> Reservation:
        """Move all bytes to a new reservation, which the caller ends."""
        with self._lock:
            size, self._size = self._size, 0
        return Reservation(self._budget, self._pool, size)


def return_freed_memory() -> None:
    """Make the C library return large blocks to the system as soon as they are freed.

    By default it keeps blocks of up to 32 MB for later use, in each of many threads. Without glibc,
    this function does nothing.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f}" if size >= 1e7 else f"{size / 1e6:.2g}"
