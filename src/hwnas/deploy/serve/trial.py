"""Times of a server on this machine: of the network by batch, and of the server's own code."""

from __future__ import annotations

import contextlib
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from hwnas.deploy.bundles.artifact import Artifact
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.measurement import TimedNetwork
from hwnas.deploy.measurement.timing import measure_together
from hwnas.deploy.runtimes import unavailable
from hwnas.deploy.serve import load
from hwnas.deploy.serve.capacity import ServiceTimes
from hwnas.deploy.serve.plan import ServingPlan
from hwnas.deploy.serve.service import BatchSettings
from hwnas.errors import ConfigError, DeviceError

__all__ = ["LoadTest", "RequestBody", "check_duration", "load_test", "service_times"]

_REQUESTS, _WARM_UP = 1000, 50
_LIGHT = 0.3  # share of the requests that a server could answer one after the other
_END_S = 30.0
_P20_TO_P80 = 2 * 0.8416  # standard deviations of a normal distribution


@dataclass(frozen=True)
class RequestBody:
    """Body of the requests of a load.

    Attributes:
        content: Content.
        content_type: Its type: raw pixels, or an image file that the server decodes.
    """

    content: bytes
    content_type: str

    @classmethod
    def of(cls, bundle: Bundle, image: Path | None) -> RequestBody:
        """Return an image file, or random pixels of the size of a bundle's images if it is None.

        Raises:
            ConfigError: The file cannot be read.
        """
        if image is not None:
            try:
                return cls(image.read_bytes(), "image/*")
            except OSError as error:
                raise ConfigError(f"cannot read the image {image}: {error}") from error
        channels, height, width = bundle.preprocessing.input_shape
        pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
        return cls(pixels.tobytes(), "application/octet-stream")


def service_times(
    bundle: Bundle,
    threads: Sequence[int],
    batches: Sequence[int],
    body: RequestBody,
    timing: TimingSettings | None = None,
) -> dict[str, dict[int, ServiceTimes]]:
    """Measure a server of a bundle on this machine, by artifact and number of threads.

    Each artifact whose runtime is here is timed alone, for each number of threads and each batch.
    The server's own code is what a server of the first artifact takes of the processor for each
    request of a light load, less the network: requests that come one after the other take less. The
    spread and the delay are those that explain the latencies under this load.

    Args:
        bundle: Bundle that is served.
        threads: Numbers of threads.
        batches: Batch sizes; 1 is added.
        body: Body of the requests.
        timing: Timing settings of the network.

    Raises:
        DeviceError: The runtime is not installed, there are too few cores, or the server fails.
    """
    first, *others = bundle.artifacts
    usable = [first, *(each for each in others if unavailable(each.target()) is None)]
    sizes = sorted({1, *batches})

    def network(artifact: Artifact, batch: int, count: int) -> TimedNetwork:
        return TimedNetwork(bundle.folder / artifact.file, artifact.target(batch, count))

    subjects = {
        f"{artifact.name} {batch} {count}": network(artifact, batch, count)
        for artifact in usable
        for count in threads
        for batch in sizes
    }
    found = measure_together(subjects, timing)
    alone = f"{first.name} 1 1"
    single = found.get(alone) or measure_together({alone: network(first, 1, 1)}, timing)[alone]
    light, cpu_ms = _light_load(bundle, body)
    own_ms = max(0.0, cpu_ms - single.cpu_ms.p50)

    def times(artifact: Artifact, count: int) -> ServiceTimes:
        walls = {batch: found[f"{artifact.name} {batch} {count}"].wall_ms for batch in sizes}
        ratios = [math.log(max(1.0, wall.p80 / wall.p20)) / _P20_TO_P80 for wall in walls.values()]
        medians = {batch: wall.p50 for batch, wall in walls.items()}
        return ServiceTimes(medians, own_ms, float(np.median(ratios)))

    begun = ServiceTimes({1: single.wall_ms.p50}, own_ms, times(first, min(threads)).spread)
    fitted = begun.fitted(light.per_second, light.p50_ms, light.p99_ms)
    spread, delay = fitted.request_spread, fitted.delay_ms
    return {
        artifact.name: {
            count: replace(times(artifact, count), request_spread=spread, delay_ms=delay)
            for count in threads
        }
        for artifact in usable
    }


def _light_load(bundle: Bundle, body: RequestBody) -> tuple[LoadTest, float]:
    """Return latencies under a light load, and the processor time of a request in milliseconds.

    The server runs one image at a time, on one thread.
    """
    with _server(bundle, None, BatchSettings(1, 0.0, 1)) as (process, url):
        idle = float(np.median(_sent(url, body, 0.0, _WARM_UP)[_WARM_UP // 2 :]))
        before = _cpu_s(process)
        found = _loaded(url, body, 1e3 * _LIGHT / idle, _REQUESTS)
        return found, 1e3 * (_cpu_s(process) - before) / _REQUESTS


@dataclass(frozen=True)
class LoadTest:
    """Latencies of a server under a load, measured.

    Attributes:
        per_second: Mean number of requests in a second.
        requests: Number of requests.
        p50_ms: Median latency in milliseconds.
        p99_ms: 99th percentile of the latency in milliseconds.
    """

    per_second: float
    requests: int
    p50_ms: float
    p99_ms: float


def load_test(bundle: Bundle, plan: ServingPlan, body: RequestBody, seconds: float) -> LoadTest:
    """Run one server of a plan on this machine under its load, and return the latencies.

    Args:
        bundle: Bundle that is served.
        plan: Plan, whose machine should be this one.
        body: Body of the requests.
        seconds: Duration of the load.

    Raises:
        ConfigError: The duration is not above 0.
        DeviceError: The server fails.
    """
    check_duration(seconds)
    requests = max(100, round(plan.per_second * seconds))
    with _server(bundle, plan.artifact, plan.settings) as (_, url):
        _sent(url, body, 0.0, _WARM_UP)
        return _loaded(url, body, plan.per_second, requests)


def _loaded(url: str, body: RequestBody, per_second: float, requests: int) -> LoadTest:
    p50, p99 = np.quantile(_sent(url, body, per_second, requests), (0.5, 0.99)).tolist()
    return LoadTest(per_second, requests, p50, p99)


def check_duration(seconds: float) -> None:
    """Raise a `ConfigError` if a load test cannot take so many seconds."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(f"the check takes {seconds:g} s; expected a time above 0")


@contextlib.contextmanager
def _server(
    bundle: Bundle, artifact: str | None, settings: BatchSettings
) -> Iterator[tuple[psutil.Process, str]]:
    """Start a server in a process of its own, and yield the process and its address."""
    command = [sys.executable, "-m", "hwnas.cli", "serve", str(bundle.folder), "--port", "0"]
    command += ["--threads", str(settings.threads), "--max-batch", str(settings.max_batch)]
    command += ["--max-wait-ms", str(settings.max_wait_ms)]
    command += [] if artifact is None else ["--artifact", artifact]
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = re.search(r"http://\S+", line)
            if address is None:
                told.seek(0)
                lines = told.read().decode(errors="replace").strip().splitlines()
                raise DeviceError(f"the server did not start: {(lines or ['no message'])[-1]}")
            yield psutil.Process(process.pid), f"{address[0]}/predict"
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
            if process.stdout is not None:
                process.stdout.close()


def _sent(url: str, body: RequestBody, per_second: float, requests: int) -> NDArray[np.float64]:
    """Send requests from another process, and return their latencies in milliseconds."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(body.content)
        file.flush()
        command = [sys.executable, str(Path(load.__file__)), url, file.name]
        command += [body.content_type, str(per_second), str(requests)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DeviceError(f"the server did not answer: {reason}")
    return np.array(json.loads(done.stdout))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
