"""Does `hwnas plan` predict the latencies of a server under load?

Servers of untrained networks run under random arrivals at shares of their capacity, one after the
other on this machine, with the client on the same machine. Their latencies are compared with those
simulated from the times of the parts, and with two formulas.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.command import run_command
from experiments.deploy.networks import packed
from experiments.readme_table import markdown
from experiments.record import Results, Row
from hwnas.deploy import Bundle
from hwnas.deploy.serve import BatchSettings
from hwnas.deploy.serve.capacity import ServiceTimes, simulated_ms
from hwnas.deploy.serve.plan import PricedMachine, ServingPlan
from hwnas.deploy.serve.trial import LoadTest, RequestBody, load_test, service_times
from hwnas.search_spaces import mobilenet

FOLDER = Path(__file__).parent
SIZES = (96, 160, 224)
BATCHING = (BatchSettings(1, 0.0, 1), BatchSettings(8, 2.0, 1))
LOADS = (0.3, 0.6, 0.8)
"""Shares of the requests that a server could answer if it did nothing else."""
CORES = 2
_MOST = 100


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.serving_plan.run", description=__doc__
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="PIXELS")
    parser.add_argument("--seconds", type=float, default=10, help="duration of each load")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the recorded rows")
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "serving_plan"))
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    config = {"seconds": arguments.seconds, "loads": LOADS, "cores": CORES}
    results = Results(arguments.out / "results.jsonl", config)
    for seed in arguments.seeds:
        for size in arguments.sizes:
            if not results.find("p99_error", f"{size} pixels simulated", seed):
                results.put(rows(bundle_of(arguments.work, size), size, seed, arguments.seconds))
    print(markdown(results.rows))


def bundle_of(folder: Path, size: int) -> Bundle:
    """Return a bundle of the smallest MobileNet for images of a size."""
    path = folder / f"bundle-{size}"
    if path.exists():
        return Bundle.load(path)
    space = mobilenet((size, size, 3), 10)
    return packed(space, space.smallest(), 10, folder, path.name)[1]


def rows(bundle: Bundle, size: int, seed: int, seconds: float) -> list[Row]:
    """Return the errors of the predictions for a network, over batchings and loads."""
    body = RequestBody.of(bundle, None)
    times = service_times(bundle, [1], [1, 2, 4, 8], body)[bundle.artifact().name][1]
    found: dict[str, list[float]] = {}
    details = []
    for settings, load, rate in _cases(times):
        measured = _measured(bundle, settings, rate, body, seconds)
        latencies = simulated_ms(times, settings, rate, CORES, seed=seed)
        p50, p99 = np.quantile(latencies, (0.5, 0.99)).tolist()
        idle = times.idle_ms
        guesses = {"simulated": p99, "idle": idle, "M/M/1": _exponential(idle, rate)}
        for name, guess in guesses.items():
            found.setdefault(name, []).append(abs(math.log(guess / measured.p99_ms)))
        details.append(
            {
                "batch": settings.max_batch,
                "load": load,
                "per_second": rate,
                "measured_ms": [measured.p50_ms, measured.p99_ms],
                "simulated_ms": [p50, p99],
            }
        )
        print(f"seed {seed}, {size} pixels: {details[-1]}", flush=True)
    return [
        Row(
            "p99_error",
            f"{size} pixels {name}",
            seed,
            math.exp(float(np.median(errors))) - 1,
            "fraction",
            len(errors),
            details={"cases": details} if name == "simulated" else {},
        )
        for name, errors in found.items()
    ]


def _cases(times: ServiceTimes) -> Iterator[tuple[BatchSettings, float, float]]:
    for settings in BATCHING:
        batch = settings.max_batch
        capacity = 1e3 / max(times.of_batch(batch) / batch, times.request_ms)
        for load in LOADS:
            yield settings, load, load * capacity


def _measured(
    bundle: Bundle, settings: BatchSettings, rate: float, body: RequestBody, seconds: float
) -> LoadTest:
    machine = PricedMachine("here", CORES, 1.0)
    plan = ServingPlan(bundle.artifact().name, machine, 1, 1, settings, rate, 0.0, 0.0)
    return load_test(bundle, plan, body, seconds)


def _exponential(service_ms: float, per_second: float) -> float:
    """Return the 99th percentile of the latency of a queue M/M/1, in milliseconds.

    It is bounded to a hundred service times, since the formula gives no finite number for rates
    that only batches carry.
    """
    left = 1 / service_ms - per_second / 1e3
    return min(math.log(100) / left, _MOST * service_ms) if left > 0 else _MOST * service_ms


if __name__ == "__main__":
    main()
