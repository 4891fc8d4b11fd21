"""Latency measurement of a network on a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from hwnas.deploy.error_line import first_line
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError

__all__ = ["Measurement", "Quantiles", "TimedNetwork"]

SCHEMA = 1


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of repeated timings, in milliseconds.

    Attributes:
        p20: 20th percentile.
        p50: Median.
        p80: 80th percentile.
        p95: 95th percentile; None in records that are older than this field.
    """

    p20: float
    p50: float
    p80: float
    p95: float | None = None

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Quantiles:
        """Return the quantiles of at least one timing in milliseconds."""
        return cls(*np.quantile(times_ms, [0.2, 0.5, 0.8, 0.95]).tolist())

    @classmethod
    def from_json(cls, data: Mapping[str, float | None]) -> Quantiles:
        """Read a JSON object with the quantiles by name."""
        values: dict[str, Any] = {n: None if ms is None else float(ms) for n, ms in data.items()}
        return cls(**values)


@dataclass(frozen=True)
class Measurement:
    """Repeated timings of one network on one target, with all that is needed to assess them.

    Attributes:
        target: Name of the target, e.g. ``"cpu-onnxruntime-fp32-b1-t1"``.
        clock: Clock of the headline: ``"cpu"`` for one thread, ``"wall"`` for more.
        cpu_ms: CPU time of one run of a batch.
        wall_ms: Wall time of one run of a batch.
        n: Number of timing rounds that the quantiles are over.
        contended: True if other work disturbed some of the rounds and repeating them did not help.
        anchor_ms: Median time of the reference model beside the same rounds, on the same clock. The
            reference model is the same on every machine and at every time, so a change of its time
            is due to the machine.
        hardware: Hardware that the network ran on, e.g. the processor's model.
        versions: Versions of the relevant libraries, by name.
        settings: Settings of the runtime that change latency.
        time: Date and time in ISO 8601.
        conditions: Temperature, frequency and load at the end, if the system reports them.
    """

    kind: ClassVar[Literal["measured"]] = "measured"

    target: str
    clock: Literal["cpu", "wall"]
    cpu_ms: Quantiles
    wall_ms: Quantiles
    n: int
    contended: bool
    anchor_ms: float
    hardware: str
    versions: Mapping[str, str] = field(hash=False)
    settings: Mapping[str, str] = field(hash=False)
    time: str
    conditions: Mapping[str, str] = field(hash=False, default_factory=dict)

    @property
    def headline(self) -> Quantiles:
        """Quantiles on the clock that counts for this target, in milliseconds."""
        return self.cpu_ms if self.clock == "cpu" else self.wall_ms

    @property
    def latency_ms(self) -> float:
        """Median of the headline, in milliseconds per batch."""
        return self.headline.p50

    def to_json(self) -> dict[str, Any]:
        """Return a versioned JSON object that states the kind of its numbers and their unit."""
        values = {"latency_ms": self.latency_ms, **asdict(self)}
        return {"schema": SCHEMA, "kind": self.kind, "unit": "ms", **values}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Return the measurement from a JSON object that `to_json` made.

        Raises:
            ArtifactError: The object is damaged or was written by a newer version.
        """
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, Mapping) else data
            raise ArtifactError(
                f"measurement: schema {found!r} is not {SCHEMA}; use the hwnas version "
                "that wrote it"
            )
        try:
            older = {"conditions": {}, **data}  # older records lack conditions
            values = {f.name: older[f.name] for f in fields(cls)}
            for clock in ("cpu_ms", "wall_ms"):
                values[clock] = Quantiles.from_json(values[clock])
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(f"measurement is damaged: {first_line(error)}") from error


@dataclass(frozen=True)
class TimedNetwork:
    """Network to be measured, with its target.

    Attributes:
        model: ONNX file.
        target: Target on which to run it.
    """

    model: Path
    target: Target
