"""Latency of a server under load, simulated from the times of its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.serve.service import BatchSettings
from hwnas.errors import ConfigError

__all__ = ["ServiceTimes", "simulated_ms"]

_REQUESTS = 10_000
_MOST_SPREAD, _HALVINGS = 1.5, 12


@dataclass(frozen=True)
class ServiceTimes:
    """Times of one server process on one machine.

    Attributes:
        network_ms: Time of a run of the network in milliseconds, by batch size, which includes 1.
        request_ms: Mean processor time that the server spends on a request beside the network, in
            milliseconds. Requests share one interpreter, so only one at a time makes progress.
        spread: Standard deviation of the logarithm of the network's times.
        request_spread: Standard deviation of the logarithm of the requests' times.
        delay_ms: Time of a request in which the server does nothing for it and may work for others,
            in milliseconds: what the connection and the waking of a thread take.
    """

    network_ms: Mapping[int, float]
    request_ms: float
    spread: float = 0.0
    request_spread: float = 0.0
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        others = self.request_ms, self.spread, self.request_spread, self.delay_ms
        times = [*self.network_ms.values(), *others]
        if 1 not in self.network_ms or not np.isfinite(times).all() or min(times) < 0:
            raise ConfigError(
                f"the times are {dict(self.network_ms)} and {self.request_ms} ms; expected finite "
                "times, and one of a single image"
            )

    @property
    def idle_ms(self) -> float:
        """Mean latency of a request of one image to an idle server, in milliseconds."""
        return self.request_ms + self.of_batch(1) + self.delay_ms

    def of_batch(self, images: int) -> float:
        """Return the time of a run in milliseconds, interpolated between the known batches."""
        sizes = sorted(self.network_ms)
        return float(np.interp(images, sizes, [self.network_ms[size] for size in sizes]))

    def on(self, speed: float) -> ServiceTimes:
        """Return the times on a machine that is so many times as fast."""
        times = {size: ms / speed for size, ms in self.network_ms.items()}
        own, delay = self.request_ms / speed, self.delay_ms / speed
        return ServiceTimes(times, own, self.spread, self.request_spread, delay)

    def fitted(self, per_second: float, p50_ms: float, p99_ms: float) -> ServiceTimes:
        """Return the times with the spread and the delay that explain measured latencies.

        With them, `simulated_ms` gives the measured quantiles, as far as a spread from 0 to 1.5
        and a delay of at least 0 can.

        Args:
            per_second: Requests in a second under which the latencies were measured, one image each
                and in batches of one.
            p50_ms: Measured median in milliseconds.
            p99_ms: Measured 99th percentile in milliseconds.
        """

        def quantiles(spread: float) -> tuple[float, float]:
            tried = replace(self, request_spread=spread, delay_ms=0.0)
            found = simulated_ms(tried, BatchSettings(1, 0.0, 1), per_second, math.inf)
            p50, p99 = np.quantile(found, (0.5, 0.99), method="higher").tolist()
            return p50, p99

        low, high = 0.0, _MOST_SPREAD
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            p50, p99 = quantiles(middle)
            low, high = (middle, high) if p99 - p50 < p99_ms - p50_ms else (low, middle)
        spread = (low + high) / 2
        delay = max(0.0, p50_ms - quantiles(spread)[0])
        return replace(self, request_spread=spread, delay_ms=delay)


def simulated_ms(
    times: ServiceTimes,
    settings: BatchSettings,
    per_second: float,
    cores: float,
    requests: int = _REQUESTS,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Simulate a server that requests of one image reach at random, and return their latencies.

    Requests arrive as a Poisson process. The server's own code handles them one at a time, in times
    whose logarithms have a normal distribution; then they wait for a batch, as in
    `hwnas.deploy.serve.batching.Batcher`. Where the server has fewer cores than the network's
    threads and one more, its own code slows the network down.

    Args:
        times: Times of the server.
        settings: Batching; the largest batch is one of the known ones, or between them.
        per_second: Mean number of requests in a second, above 0.
        cores: Processor cores that the server has.
        requests: Number of requests to simulate.
        seed: Seed of the arrivals.

    Returns:
        Latencies in milliseconds, (requests,), infinite if the server cannot keep up.
    """
    busy = per_second * times.request_ms / 1e3  # share of a core that the server's code takes
    stolen = max(0.0, busy - max(0.0, cores - settings.threads)) / settings.threads
    if busy >= 1 or stolen >= 1:
        return np.full(requests, np.inf)
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1e3 / per_second, requests))
    draws = times.request_spread * rng.standard_normal(requests) - times.request_spread**2 / 2
    ready = _one_at_a_time(arrivals, times.request_ms * np.exp(draws)).tolist()
    spread = np.exp(times.spread * rng.standard_normal(requests)) / (1 - stolen)
    slower = spread.tolist()
    one_run = [0.0, *(times.of_batch(n) for n in range(1, settings.max_batch + 1))]
    most, wait = settings.max_batch, settings.max_wait_ms
    ends: list[float] = []
    free, first = 0.0, 0
    while first < requests:
        full = first + most - 1
        begin = ready[first] + wait
        if full < requests and ready[full] < begin:
            begin = ready[full]
        if begin < free:
            begin = free
        last, stop = first + 1, min(first + most, requests)
        while last < stop and ready[last] <= begin:
            last += 1
        free = begin + one_run[last - first] * slower[first]
        ends += [free] * (last - first)
        first = last
    return np.asarray(ends) - arrivals + times.delay_ms


def _one_at_a_time(arrivals: NDArray[np.float64], ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return when each request is handled, if each takes its own time and they queue."""
    done = np.cumsum(ms)
    # end[i] = max over j <= i of (arrival[j] + ms[j] + ... + ms[i])
    handled: NDArray[np.float64] = np.maximum.accumulate(arrivals - done + ms) + done
    return handled
