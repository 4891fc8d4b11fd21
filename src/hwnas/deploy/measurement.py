"""How long a network took on a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal

import numpy as np

from hwnas.deploy.first_line import first_line
from hwnas.errors import ArtifactError

__all__ = ["Measurement", "Quantiles"]

SCHEMA = 1


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of repeated timings, in milliseconds.

    Attributes:
        p20: A fifth of the timings were shorter.
        p50: The median.
        p80: A fifth of the timings were longer.
        p95: One in twenty was longer; None in records that are older than this field.
    """

    p20: float
    p50: float
    p80: float
    p95: float | None = None

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Quantiles:
        """The quantiles of at least one timing in milliseconds."""
        return cls(*np.quantile(times_ms, [0.2, 0.5, 0.8, 0.95]).tolist())

    @classmethod
    def from_json(cls, data: Mapping[str, float | None]) -> Quantiles:
        """Read an object with the quantiles by name."""
        values: dict[str, Any] = {n: None if ms is None else float(ms) for n, ms in data.items()}
        return cls(**values)


@dataclass(frozen=True)
class Measurement:
    """Repeated timings of one network on one target, with all that is needed to judge them.

    Attributes:
        target: Name of the target, e.g. ``"cpu-onnxruntime-fp32-b1-t1"``.
        clock: Which clock gives the headline: ``"cpu"`` for one thread, ``"wall"`` for more.
        cpu_ms: CPU time of one run of a batch.
        wall_ms: Wall time of one run of a batch.
        n: Rounds that the quantiles are over.
        contended: Other work disturbed some of the rounds and repeating them did not help.
        anchor_ms: Median of the fixed anchor network beside the same rounds, on the same clock; the
            same network on every machine and at every time, so a change of it is the machine's.
        hardware: What it ran on, e.g. the processor's model.
        versions: Of the libraries that matter, by name.
        settings: Of the runtime, those that change latency.
        time: When, in ISO 8601.
        conditions: Temperature, frequency and load at the end, where the system shows them.
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
        """The quantiles on the clock that counts for this target, in milliseconds."""
        return self.cpu_ms if self.clock == "cpu" else self.wall_ms

    @property
    def latency_ms(self) -> float:
        """The median of the headline, in milliseconds a batch."""
        return self.headline.p50

    def to_json(self) -> dict[str, Any]:
        """A versioned JSON object; it says what kind of number it holds and in which unit."""
        values = {"latency_ms": self.latency_ms, **asdict(self)}
        return {"schema": SCHEMA, "kind": self.kind, "unit": "ms", **values}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """The inverse of `to_json`.

        Raises:
            ArtifactError: The object is damaged or was written by a newer version.
        """
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, Mapping) else data
            raise ArtifactError(
                f"measurement: schema {found!r} is not {SCHEMA}; it needs another hwnas"
            )
        try:
            older = {"conditions": {}, **data}  # which did not tell them
            values = {f.name: older[f.name] for f in fields(cls)}
            for clock in ("cpu_ms", "wall_ms"):
                values[clock] = Quantiles.from_json(values[clock])
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(f"measurement is damaged: {first_line(error)}") from error
