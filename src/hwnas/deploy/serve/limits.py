"""Limits on what clients may request of a server, and the exception that refuses a request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hwnas.errors import ConfigError

__all__ = ["MOST_PIXELS", "RequestRefusal", "ServerLimits"]

MOST_PIXELS = 89_000_000
"""Number of pixels beyond which Pillow treats an image as a decompression bomb."""


class RequestRefusal(Exception):
    """Refusal of a request, sent to the client as an HTTP error; it never leaves the server.

    Attributes:
        status: HTTP status code.
        headers: Headers sent with the answer.
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(frozen=True)
class ServerLimits:
    """Limits that keep any client from taking all memory, threads or time.

    Attributes:
        memory_bytes: Memory of all requests together, from their bodies to their answers. A quarter
            is for bodies. The network's own memory comes on top.
        memory_wait_s: Longest time that a request waits for others to free memory, in seconds.
        body_bytes: Largest body of a request, in bytes.
        pixels: Largest number of pixels of a decoded image file.
        mask_bytes: Largest size in bytes of the class scores that a mask is made from.
        waiting_images: Largest number of images in the queue; further requests are asked to retry.
        connections: Largest number of open connections.
        client_s: Longest time for a client to send a request, or to receive an answer, in seconds.
        answer_s: Longest time from a request's body to its answer, in seconds; after it, the
            request is not computed any more.
        drain_s: Longest time for requests in progress when the server ends, in seconds.
    """

    memory_bytes: int = 10**9
    memory_wait_s: float = 10.0
    body_bytes: int = 16 * 2**20
    pixels: int = 25_000_000
    mask_bytes: int = 512 * 2**20
    waiting_images: int = 128
    connections: int = 64
    client_s: float = 30.0
    answer_s: float = 60.0
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}; expected a finite number above 0")
        if self.pixels > MOST_PIXELS:
            raise ConfigError(f"pixels is {self.pixels}; expected at most {MOST_PIXELS}")
