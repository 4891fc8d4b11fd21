"""What a server lets clients do, and how it says no."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hwnas.errors import ConfigError

__all__ = ["MOST_PIXELS", "Limits", "Refusal"]

MOST_PIXELS = 89_000_000
"""Beyond this Pillow takes an image for a bomb."""


class Refusal(Exception):
    """A request is not answered as it was meant to be; none gets out of the server.

    Attributes:
        status: HTTP's number for the reason.
        headers: To be sent with it.
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(frozen=True)
class Limits:
    """So that no client can take all memory, threads or time.

    Attributes:
        memory_bytes: Of all requests together, from their bodies to their answers; what the
            network itself takes comes on top. A quarter is for bodies.
        memory_wait_s: A request waits so long for others to give memory back.
        body_bytes: Of a request.
        pixels: Of an image file, once it is decoded.
        mask_bytes: Of the class scores that a mask is made from.
        waiting_images: In the queue; who comes then is asked to come again.
        connections: Open at the same time.
        client_s: A client may take so long to send a request, or to take an answer.
        answer_s: A request may take so long from its body to its answer; later it is not computed
            any more.
        drain_s: Requests that are under way get so long when the server ends.
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
                raise ConfigError(f"{name} is {value}; expected more than 0, and an end")
        if self.pixels > MOST_PIXELS:
            raise ConfigError(f"pixels is {self.pixels}; expected at most {MOST_PIXELS}")
