"""Counters, gauges and histograms in Prometheus's text format, version 0.0.4."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

from hwnas.deploy.caching.prediction_cache import PredictionCache

__all__ = [
    "CONTENT_TYPE",
    "Counter",
    "Gauge",
    "Histogram",
    "Metric",
    "ReadCounter",
    "cache_metrics",
    "render",
]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


class Counter:
    """Number that only grows, for each combination of label values.

    Args:
        name: Name of the metric, which ends in ``_total``.
        text: Description of what is counted.
        labels: Names of the labels.
    """

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name, self.text, self._labels = name, text, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}
        self._lock = threading.Lock()

    def add(self, amount: float = 1, *values: str) -> None:
        """Add an amount to the count of these label values."""
        with self._lock:
            self._values[values] = self._values.get(values, 0) + amount

    def samples(self) -> Iterator[str]:
        """Yield one line for each combination of label values."""
        with self._lock:
            found = dict(self._values)
        for values, number in found.items():
            yield _sample(self.name, dict(zip(self._labels, values, strict=True)), number)


class Gauge:
    """Number that is read when the metrics are requested.

    Args:
        name: Name of the metric.
        text: Description of the number.
        read: Function that returns the number.
        labels: Fixed labels of the metric.
    """

    kind = "gauge"

    def __init__(
        self, name: str, text: str, read: Callable[[], float], labels: Labels | None = None
    ) -> None:
        self.name, self.text, self._read, self._labels = name, text, read, labels or {}

    def samples(self) -> Iterator[str]:
        """Yield the only line."""
        yield _sample(self.name, self._labels, self._read())


class ReadCounter(Gauge):
    """Number that only grows, and is read like a gauge."""

    kind = "counter"


class Histogram:
    """Cumulative histogram of observations.

    Args:
        name: Name of the metric, with its unit.
        text: Description of what is observed.
        bounds: Upper bounds of the buckets, in ascending order; infinity is added.
    """

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text = name, text
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count an observation."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def samples(self) -> Iterator[str]:
        """Yield a line for each bound, for the sum and for the count."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        below = 0
        for bound, count in zip(self._bounds, counts, strict=True):
            below += count
            yield _sample(f"{self.name}_bucket", {"le": _number(bound)}, below)
        yield _sample(f"{self.name}_sum", {}, total)
        yield _sample(f"{self.name}_count", {}, below)


Metric = Counter | Gauge | Histogram


def cache_metrics(cache: PredictionCache) -> list[Metric]:
    """Return the metrics of a cache of outputs."""
    return [
        ReadCounter("hwnas_cache_hits_total", "Images that were known.", lambda: cache.counts.hits),
        ReadCounter(
            "hwnas_cache_near_hits_total",
            "Images that were nearly equal to a known one.",
            lambda: cache.counts.near_hits,
        ),
        ReadCounter(
            "hwnas_cache_misses_total",
            "Images that were not known.",
            lambda: cache.counts.misses,
        ),
        Gauge("hwnas_cache_entries", "Images in the cache.", lambda: cache.counts.entries),
        Gauge("hwnas_cache_bytes", "Memory of the cache.", lambda: cache.counts.bytes),
    ]


def render(metrics: Sequence[Metric]) -> str:
    """Return the page that Prometheus reads."""
    lines = []
    for metric in metrics:
        text = metric.text.replace("\\", r"\\").replace("\n", r"\n")
        lines += [f"# HELP {metric.name} {text}", f"# TYPE {metric.name} {metric.kind}"]
        lines += metric.samples()
    return "".join(f"{line}\n" for line in lines)


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {_number(value)}" if pairs else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else str(int(value)) if value == int(value) else repr(value)
