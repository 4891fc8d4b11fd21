"""Closed-loop load generator for a server: several connections, each with one request in flight.

Each connection sends its next request as soon as it has an answer. The generator runs as a separate
process, so that it shares nothing with the server but the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from experiments.command import run_command
from hwnas.deploy.serve.load import read_status
from hwnas.errors import RunError

__all__ = ["Load", "load"]


@dataclass(frozen=True)
class Load:
    """Throughput and latency of a server under load.

    Attributes:
        requests: Number of requests answered between the warm-up and the end.
        seconds: Duration of that interval.
        p50_ms: Median latency.
        p99_ms: 99th percentile of the latency.
        errors: Number of error answers by HTTP status.
    """

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: dict[str, int]

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return self.requests / self.seconds


def load(url: str, bodies: list[bytes], connections: int, warmup_s: float, seconds: float) -> Load:
    """Send raw pixels to ``url`` for some time.

    Args:
        url: Address of a server's ``/predict``.
        bodies: Raw uint8 images; each connection sends them in turn.
        connections: Number of concurrent connections.
        warmup_s: Duration of the warm-up, which does not count.
        seconds: Duration of the measured interval.

    Raises:
        RunError: No request was answered.
    """
    return asyncio.run(_load(url, bodies, connections, warmup_s, seconds))


async def _load(
    url: str, bodies: list[bytes], connections: int, warmup_s: float, seconds: float
) -> Load:
    begin = time.perf_counter() + warmup_s
    end = begin + seconds
    latencies_ms: list[float] = []
    errors: dict[str, int] = {}

    async def ask(place: int) -> None:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        count = place
        while (asked := time.perf_counter()) < end:
            body = bodies[count % len(bodies)]
            count += 1
            head = (
                f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\n"
                f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            status = (await read_status(reader)).split(" ", 2)[1]
            answered = time.perf_counter()
            if status != "200":
                errors[status] = errors.get(status, 0) + 1
            elif begin <= answered <= end:
                latencies_ms.append(1e3 * (answered - asked))
        writer.close()

    await asyncio.gather(*(ask(place) for place in range(connections)))
    if not latencies_ms:
        raise RunError(f"{url} answered nothing in {seconds} s; errors: {errors}")
    p50, p99 = np.quantile(latencies_ms, (0.5, 0.99)).tolist()
    return Load(len(latencies_ms), seconds, p50, p99, errors)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.deploy.load", description=__doc__)
    parser.add_argument("url", help="address of a server's /predict")
    parser.add_argument("images", type=Path, help=".npy file: uint8 images (N, H, W, C)")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--warmup", type=float, default=2, metavar="SECONDS")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--core", type=int, help="the only core that this process may use")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    bodies = [image.tobytes() for image in np.load(arguments.images, allow_pickle=False)]
    found = load(arguments.url, bodies, arguments.connections, arguments.warmup, arguments.seconds)
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
