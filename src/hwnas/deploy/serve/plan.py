"""Choice of machines and settings that serve a network under a load at the lowest price."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hwnas.deploy.serve.capacity import ServiceTimes, simulated_ms
from hwnas.deploy.serve.service import BatchSettings
from hwnas.errors import ConfigError, InfeasibleError

__all__ = ["PricedMachine", "ServingPlan", "check_load", "plan_serving"]

_WAITS_MS = (0.0, 1.0, 2.0, 5.0, 10.0)
_MOST_SERVERS = 10_000
_QUANTILE = 0.99
_MOST_BUSY = 0.65
"""Largest share of the time in which a server's own code may work: above it, measured latencies are
several times the simulated ones, see experiments/serving_plan."""
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_FORM = re.compile(rf"([^=\s]+)=(\d+):{_NUMBER}(?::{_NUMBER})?")


@dataclass(frozen=True)
class PricedMachine:
    """Machine that can be rented.

    Attributes:
        name: Name of the machine.
        cores: Number of processor cores.
        price: Price of an hour, above 0, in any currency.
        speed: Speed of a core, relative to the machine on which the network was timed.
    """

    name: str
    cores: int
    price: float
    speed: float = 1.0

    def __post_init__(self) -> None:
        numbers = self.cores, self.price, self.speed
        if not all(math.isfinite(each) and each > 0 for each in numbers):
            raise ConfigError(
                f"machine {self.name} has {self.cores} cores, price {self.price:g} and speed "
                f"{self.speed:g}; expected numbers above 0"
            )

    @classmethod
    def parse(cls, text: str) -> PricedMachine:
        """Return the machine of a text like ``"small=2:0.05"`` or ``"large=8:0.2:1.5"``.

        Raises:
            ConfigError: The text has another form.
        """
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ConfigError(
                f"the machine is {text!r}; expected NAME=CORES:PRICE or NAME=CORES:PRICE:SPEED, "
                "such as small=2:0.05"
            )
        name, cores, price, speed = found.groups()
        return cls(name, int(cores), float(price), float(speed or 1))


@dataclass(frozen=True)
class ServingPlan:
    """Machines and settings that serve a load.

    Attributes:
        artifact: Name of the bundle's artifact that is served, such as ``"int8@openvino"``.
        machine: Kind of machine.
        machines: Number of them.
        servers: Number of server processes on all machines together.
        settings: Threads and batching of each server.
        per_second: Requests in a second that each server gets.
        p50_ms: Predicted median latency in milliseconds.
        p99_ms: Predicted 99th percentile of the latency in milliseconds.
    """

    artifact: str
    machine: PricedMachine
    machines: int
    servers: int
    settings: BatchSettings
    per_second: float
    p50_ms: float
    p99_ms: float

    @property
    def price(self) -> float:
        """Price of an hour of all machines."""
        return self.machines * self.machine.price

    @property
    def cores_per_server(self) -> float:
        """Cores of a machine, divided by the servers on it."""
        return self.machine.cores / max(1, self.machine.cores // self.settings.threads)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, for scripts."""
        return {**asdict(self), "price": self.price}


def plan_serving(
    times: Mapping[str, Mapping[int, ServiceTimes]],
    machines: Sequence[PricedMachine],
    per_second: float,
    p99_ms: float,
) -> list[ServingPlan]:
    """Return the cheapest plan on each kind of machine, cheapest first.

    Each machine runs as many servers as its cores hold, each with the same number of threads; a
    load balancer divides the requests evenly.

    Args:
        times: Times of a server by the artifact that it serves and its number of threads, with
            batches of the sizes to try. Of plans at the same price, one of the first artifact is
            taken, then the fastest.
        machines: Kinds of machines.
        per_second: Mean number of requests in a second.
        p99_ms: Largest acceptable 99th percentile of the latency in milliseconds.

    Raises:
        ConfigError: A number is not above 0, no machine is given, or one is given twice.
        InfeasibleError: No number of servers is fast enough on any of the machines.
    """
    check_load(machines, per_second, p99_ms)
    found = []
    for machine in machines:
        plans = [
            plan
            for artifact, by_threads in times.items()
            for settings in _settings(by_threads, machine)
            if (
                plan := _smallest(
                    artifact, by_threads[settings.threads], machine, settings, per_second, p99_ms
                )
            )
            is not None
        ]
        if plans:
            order = list(times).index
            found.append(
                min(plans, key=lambda plan: (plan.price, order(plan.artifact), plan.p99_ms))
            )
    if not found:
        fastest = min(
            each.on(machine.speed).idle_ms
            for machine in machines
            for by_threads in times.values()
            for each in by_threads.values()
        )
        raise InfeasibleError(
            f"no number of servers keeps the 99th percentile at {p99_ms:g} ms; a single request on "
            f"an idle server takes {fastest:.3g} ms. Allow more, or choose a faster network"
        )
    return sorted(found, key=lambda plan: plan.price)


def check_load(machines: Sequence[PricedMachine], per_second: float, p99_ms: float) -> None:
    """Raise if a load or a machine is wrong, before anything is measured; see `plan_serving`."""
    for name, value in {"rate": per_second, "p99": p99_ms}.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"the {name} is {value:g}; expected a number above 0")
    names = [machine.name for machine in machines]
    if not machines or len(set(names)) < len(names):
        raise ConfigError(f"the machines are {', '.join(names) or 'none'}; expected different ones")


def _settings(times: Mapping[int, ServiceTimes], machine: PricedMachine) -> Iterable[BatchSettings]:
    for threads, each in times.items():
        if threads > machine.cores:
            continue
        for batch, wait in itertools.product(each.network_ms, _WAITS_MS):
            if batch > 1 or wait == 0:
                yield BatchSettings(batch, wait, threads)


def _smallest(
    artifact: str,
    times: ServiceTimes,
    machine: PricedMachine,
    settings: BatchSettings,
    per_second: float,
    p99_ms: float,
) -> ServingPlan | None:
    """Return the plan with the fewest servers, found by bisection; None if none is fast enough."""
    own = times.on(machine.speed)
    if own.idle_ms > p99_ms:
        return None
    per_machine = machine.cores // settings.threads
    cores = machine.cores / per_machine

    def plan(servers: int) -> ServingPlan:
        latencies = simulated_ms(own, settings, per_second / servers, cores)
        p50, p99 = np.quantile(latencies, (0.5, _QUANTILE), method="higher").tolist()
        count = math.ceil(servers / per_machine)
        each = per_second / servers
        return ServingPlan(artifact, machine, count, servers, settings, each, p50, p99)

    # Below this number, the network alone could not keep up, or the server's own code is too busy.
    image_ms = own.of_batch(settings.max_batch) / settings.max_batch
    busy_ms = max(image_ms, own.request_ms / _MOST_BUSY)
    least = max(1, math.ceil(per_second * busy_ms / 1e3))
    most = least
    while (found := plan(most)).p99_ms > p99_ms:
        if most > _MOST_SERVERS:
            return None
        least, most = most + 1, 2 * most
    while least < most:
        middle = (least + most) // 2
        tried = plan(middle)
        if tried.p99_ms <= p99_ms:
            found, most = tried, middle
        else:
            least = middle + 1
    return found
