"""Planning of servers from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hwnas.api.given_networks import opened_bundle
from hwnas.api.run import Network
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.serve.plan import PricedMachine, ServingPlan, check_load
from hwnas.deploy.serve.plan import plan_serving as plan_of_times
from hwnas.deploy.serve.trial import LoadTest, RequestBody, check_duration, load_test, service_times

__all__ = ["ServingPlans", "plan_serving"]

_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class ServingPlans:
    """Plans for a load, and perhaps a measurement of one of their servers.

    Attributes:
        plans: The cheapest plan on each kind of machine, cheapest first.
        check: Latencies of one server of the first plan on this machine; None if not measured.
    """

    plans: list[ServingPlan]
    check: LoadTest | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, for scripts."""
        check = None if self.check is None else asdict(self.check)
        return {"plans": [plan.to_json() for plan in self.plans], "check": check}


def plan_serving(
    bundle: str | Path | Bundle | Network,
    per_second: float,
    p99_ms: float,
    machines: Sequence[str | PricedMachine],
    *,
    image: str | Path | None = None,
    check_seconds: float | None = None,
) -> ServingPlans:
    """Find the cheapest machines that serve a network at a rate within a latency limit.

    The artifacts of the bundle whose runtimes are here, and the server's own code, are measured on
    this machine; latencies under load are simulated from these times.

    Args:
        bundle: Bundle, its path, or a finalist of a run.
        per_second: Requests of one image in a second, on average.
        p99_ms: Largest acceptable 99th percentile of the latency in milliseconds.
        machines: Kinds of machines: ``"NAME=CORES:PRICE"``, or ``"NAME=CORES:PRICE:SPEED"`` with
            the speed of a core relative to this machine.
        image: Image file that the requests send; raw pixels of the network's size if None.
        check_seconds: Time for which one server of the cheapest plan is run on this machine under
            its load; None for no such check.

    Raises:
        ConfigError: A number or a machine is wrong, or the image cannot be read.
        InfeasibleError: No number of servers is fast enough.
        DeviceError: The server cannot run here.
    """
    kinds = [
        each if isinstance(each, PricedMachine) else PricedMachine.parse(each) for each in machines
    ]
    check_load(kinds, per_second, p99_ms)
    opened = opened_bundle(bundle)
    if check_seconds is not None:
        check_duration(check_seconds)
    body = RequestBody.of(opened, None if image is None else Path(image))
    most = min(os.cpu_count() or 1, max((kind.cores for kind in kinds), default=1))
    threads = [count for count in (1, 2, 4, 8, 16) if count <= most]
    times = service_times(opened, threads, _BATCHES, body)
    plans = plan_of_times(times, kinds, per_second, p99_ms)
    check = None if check_seconds is None else load_test(opened, plans[0], body, check_seconds)
    return ServingPlans(plans, check)
