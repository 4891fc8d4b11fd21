"""Settings and result of building a cascade from networks of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hwnas.deploy.cascades.choice import AccuracyCount, CascadeChoice, Pair, check_aim
from hwnas.deploy.measurement.measurement import Quantiles
from hwnas.errors import ConfigError
from hwnas.interval import wilson_interval
from hwnas.plugin import closest
from hwnas.stages.deployment.cascade_costs import Costs, Saved
from hwnas.stages.deployment.pair_search import PairSearch

__all__ = ["Among", "CascadeOption", "CascadeSettings", "Cascading", "numbers_of"]

Among = Literal["scored", "finalists"]
_CHOICES = {"saved": ("latency", "energy"), "among": ("scored", "finalists")}


@dataclass(frozen=True)
class CascadeSettings:
    """Settings of how a cascade is chosen.

    Attributes:
        target_accuracy: Accuracy to reach on validation images, in 0..1.
        margin: Margin of that accuracy in standard errors; see `hwnas.deploy.cascades.choice`.
        saved: Cost to save: ``"latency"`` or ``"energy"``.
        among: Networks that are paired: the ``"finalists"``, or all that the search ``"scored"``,
            of which a few pairs are made and measured.
        pairs: Number of pairs of scored networks that are made, at least 1.
        most_scored: Largest number of scored networks that are compared, at least 2.
    """

    target_accuracy: float
    margin: float = 1.0
    saved: Saved = "latency"
    among: Among = "scored"
    pairs: int = 3
    most_scored: int = 128

    def __post_init__(self) -> None:
        check_aim(self.target_accuracy, self.margin)
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; {closest(str(getattr(self, name)), known)}"
                )
        for name, least in (("pairs", 1), ("most_scored", 2)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least {least}")


@dataclass(frozen=True)
class CascadeOption:
    """Accuracy and cost of a single network or of a cascade.

    Attributes:
        name: Id of the network, or both ids of the cascade.
        validation: Accuracy on the validation images, which were used to choose.
        test: Accuracy on the test images, which were not used to choose.
        expected: Expected cost of an image. For a cascade, that of the small network and of the
            decision, plus that of the big network times the share of validation images it gets.
        energy_mj: Expected energy of an image in millijoules, from the networks' energies in the
            same way; None if they are unknown.
        measured_ms: Mean latency of an image over passes through test images; None if not timed.
    """

    name: str
    validation: AccuracyCount
    test: AccuracyCount
    expected: float
    energy_mj: float | None = None
    measured_ms: Quantiles | None = None


@dataclass(frozen=True)
class Cascading:
    """Result of building a cascade from networks of a run.

    Attributes:
        target: Target of the latencies.
        target_accuracy: Accuracy to reach on validation images.
        margin: Margin of that accuracy, in standard errors.
        costs: Costs of all networks that were paired, in the quantity to be saved.
        choice: Cheapest network and cheapest pair that reach the accuracy.
        cascade: Chosen pair; None if none reaches the accuracy.
        single: Best single network; None if none reaches the accuracy.
        parts: The two networks of the cascade, each alone.
        energy: Origin of the energies: ``"measured"``, ``"predicted"`` or ``"unknown"``.
        energy_unknown: Reason why the energies are unknown; empty if they are known.
        search: Comparison of all scored networks; None if only finalists were paired.
        of_finalists: Choice among the finalists only, at the same costs; None without a search.
        delivered: For each pair of that comparison whose networks could be made, the cheapest
            cascade that reaches the accuracy, or else the most accurate one, as delivered.
        timed_images: Number of test images in the mean measured latencies; 0 if nothing was timed.
        folder: Folder of the written cascade; None if it saves nothing and was not written.
    """

    target: str
    target_accuracy: float
    margin: float
    costs: Costs
    choice: CascadeChoice
    cascade: CascadeOption | None
    single: CascadeOption | None
    parts: tuple[CascadeOption, ...]
    energy: Literal["measured", "predicted", "unknown"] = "unknown"
    energy_unknown: str = ""
    search: PairSearch | None = None
    of_finalists: CascadeChoice | None = None
    delivered: tuple[Pair, ...] = ()
    timed_images: int = 0
    folder: Path | None = None

    @property
    def gains(self) -> bool:
        """True if the cascade is cheaper than any single network.

        For latency the measured times decide, where they are known: networks that alternate are
        slower than when they run alone.
        """
        one = None if self.single is None else self.single.measured_ms
        two = None if self.cascade is None else self.cascade.measured_ms
        if self.costs.name != "latency" or one is None or two is None:
            return self.choice.gains
        return two.p50 < one.p50

    @property
    def ways(self) -> dict[str, CascadeOption]:
        """The cascade as ``"cascade"``, its parts and the best single network by their ids."""
        ways = {"cascade": self.cascade, **{part.name: part for part in self.parts}}
        if self.single is not None:
            ways[self.single.name] = self.single
        return {of: way for of, way in ways.items() if way is not None}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        found = {**asdict(self), "gains": self.gains}
        return {**found, "folder": None if self.folder is None else str(self.folder)}


def numbers_of(found: Cascading) -> list[dict[str, Any]]:
    """Return the accuracies and costs of the cascade, its parts and the best single network."""
    rows: list[dict[str, Any]] = []
    for of, way in found.ways.items():
        for split, tally in (("validation", way.validation), ("test", way.test)):
            accuracy = _evaluated("accuracy", tally.accuracy, tally.n)
            rows.append({**accuracy, "of": of, "split": split})
            if of == "cascade":
                share = _evaluated("share_of_big", tally.share, tally.n)
                rows.append({**share, "of": of, "split": split})
        rows += _costs(found, of, way)
    return rows


def _costs(found: Cascading, of: str, way: CascadeOption) -> list[dict[str, Any]]:
    where, costs = {"of": of, "target": found.target}, found.costs
    kind: str = "modelled" if of == "cascade" else costs.kind
    about = {"name": costs.name, "unit": costs.unit, "kind": kind}
    rows: list[dict[str, Any]] = [{**where, **about, "value": way.expected}]
    if way.energy_mj is not None and costs.name != "energy":
        kind = "modelled" if of == "cascade" else found.energy
        about = {"name": "energy", "unit": "mJ", "kind": kind}
        rows.append({**where, **about, "value": way.energy_mj})
    if way.measured_ms is not None:
        about = {"name": "mean_latency", "unit": "ms", "kind": "measured"}
        timed = {"p20": way.measured_ms.p20, "p80": way.measured_ms.p80}
        mean = {"n": found.timed_images, "value": way.measured_ms.p50, "split": "test"}
        rows.append({**where, **about, **timed, **mean})
    return rows


def _evaluated(name: str, value: float, n: int) -> dict[str, Any]:
    error = (value * (1 - value) / n) ** 0.5
    interval = wilson_interval(value, n)
    about = {"name": name, "value": value, "unit": "fraction", "kind": "evaluated", "n": n}
    ends = {"interval": interval.ends, "interval_method": interval.method}
    return {**about, "standard_error": error, **ends}
