"""Open-loop load on a server: requests are sent at random times, whether or not answers came.

The file runs as a process of its own, with the arguments URL, file of the body, type, rate and
number of requests. It needs the standard library only, so it starts at once.
"""

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["Load", "read_status", "sent"]


@dataclass(frozen=True)
class Load:
    """Requests to send.

    Attributes:
        url: Address, such as ``"http://127.0.0.1:8000/predict"``.
        body: Body of each request.
        content_type: Type of the body.
        per_second: Mean number of requests in a second; 0 sends each after the answer to the one
            before.
        requests: Number of requests.
        connections: Most connections at the same time.
        seed: Seed of the times.
    """

    url: str
    body: bytes
    content_type: str
    per_second: float
    requests: int
    connections: int = 64
    seed: int = 0


async def _answers(load: Load) -> list[float]:
    address = urlsplit(load.url)
    head = (
        f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Content-Type: {load.content_type}\r\nContent-Length: {len(load.body)}\r\n\r\n"
    ).encode()
    idle: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.LifoQueue()
    opened = 0
    latencies_ms: list[float] = []

    async def ask(wanted: float) -> None:
        nonlocal opened
        if idle.empty() and opened < load.connections:
            opened += 1
            pair = await asyncio.open_connection(address.hostname, address.port)
        else:
            pair = await idle.get()
        reader, writer = pair
        writer.write(head + load.body)
        status = await read_status(reader)
        if status.split(" ", 2)[1] != "200":
            raise RuntimeError(status)
        latencies_ms.append(1e3 * (time.perf_counter() - wanted))
        idle.put_nowait(pair)

    rng = random.Random(load.seed)
    wanted, tasks = time.perf_counter(), []
    for _ in range(load.requests):
        if load.per_second == 0:
            await ask(time.perf_counter())
            continue
        wanted += rng.expovariate(load.per_second)
        await asyncio.sleep(max(0.0, wanted - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(wanted)))
    await asyncio.gather(*tasks)
    return latencies_ms


async def read_status(reader: asyncio.StreamReader) -> str:
    """Read an answer to its end and return its status line, such as ``"HTTP/1.1 200 OK"``."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    length = next(int(line[15:]) for line in head if line[:15].lower() == "content-length:")
    await reader.readexactly(length)
    return head[0]


def sent(load: Load) -> list[float]:
    """Send the requests, and return their latencies in milliseconds, from the planned start.

    Raises:
        RuntimeError: An answer is an error.
        OSError: The server does not answer.
    """
    return asyncio.run(_answers(load))


def _main() -> None:
    url, body, content_type, per_second, requests = sys.argv[1:]
    load = Load(url, Path(body).read_bytes(), content_type, float(per_second), int(requests))
    print(json.dumps(sent(load)))


if __name__ == "__main__":
    _main()
