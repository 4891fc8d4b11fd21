"""Cascade of two finalists of a run: chosen on validation images, tested, timed and packaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.cascades.choice import (
    AccuracyCount,
    CandidateScores,
    CascadeChoice,
    Pair,
    check_aim,
    choose,
    pair_tally,
    single_tally,
)
from hwnas.deploy.cascades.packing import write_cascade
from hwnas.deploy.cascades.timing import Pass, cascade_pass, decision_ms, network_pass, time_passes
from hwnas.deploy.measurement.measurement import Quantiles
from hwnas.deploy.targets.catalogue import machine
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.interval import wilson_interval
from hwnas.search import Split
from hwnas.stages.deployment.cascade_costs import Costs, Saved, costs_of, latencies_ms
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.finalists.limits import best_kept, limit_messages, none_keeps, of_bundle
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job

__all__ = ["CascadeOption", "Cascading", "make_cascade"]

_CHUNK = 256
_GOLDEN_FROM = 256
_PASS_MS = 1000.0
_FEWEST, _MOST = 50, 1000
"""Bounds of the number of timed test images, which take about `_PASS_MS` together."""


@dataclass(frozen=True)
class CascadeOption:
    """Accuracy and cost of a single network or of a cascade.

    Attributes:
        name: Id of the network, or both ids of the cascade.
        validation: Accuracy on the validation images, which were used to choose.
        test: Accuracy on the test images, which were not used to choose.
        expected: Expected cost of an image. For a cascade, that of the small network and of the
            decision, plus that of the big network times the share of validation images it gets.
        measured_ms: Mean latency of an image over passes through test images; None if not timed.
    """

    name: str
    validation: AccuracyCount
    test: AccuracyCount
    expected: float
    measured_ms: Quantiles | None = None


@dataclass(frozen=True)
class Cascading:
    """Result of building a cascade from the finalists of a run.

    Attributes:
        target: Target of the latencies.
        target_accuracy: Accuracy to reach on validation images.
        margin: Margin of that accuracy, in standard errors.
        costs: Costs of all finalists, in the quantity to be saved.
        choice: Cheapest network and cheapest pair that reach the accuracy.
        cascade: Chosen pair; None if none reaches the accuracy.
        single: Best single network; None if none reaches the accuracy.
        parts: The two networks of the cascade, each alone.
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

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        found = {**asdict(self), "gains": self.gains}
        return {**found, "folder": None if self.folder is None else str(self.folder)}


def make_cascade(
    job: Job,
    goal: SearchGoal,
    target_accuracy: float,
    margin: float,
    out: Path,
    saved: Saved = "latency",
) -> Cascading:
    """Choose two finalists, and package them if their cascade is cheaper than any single network.

    Args:
        job: Run of the finalists.
        goal: Goal of the run that the finalists belong to.
        target_accuracy: Accuracy to reach on validation images.
        margin: Margin of that accuracy in standard errors; see `choose`.
        out: Folder of the cascade.
        saved: Quantity to be saved.

    Raises:
        ConfigError: The task is not classification, the target does not run one image at a time in
            ONNX Runtime, or the target accuracy is not an accuracy.
        InfeasibleError: Neither a network nor a pair reaches the accuracy, or all finalists cost
            more than a limit allows.
        ArtifactError: A bundle is damaged.
        EnergyUnavailable: Energy is to be saved, but it is neither counted nor predicted.
        RunError: A finalist was not measured.
    """
    check_aim(target_accuracy, margin)
    target = _target(job, goal)
    bundles = _affordable(job, goal)
    data = job.run_inputs.data
    scores, labels = _scores(bundles, data.validation)
    times = latencies_ms(bundles, target)
    images = _first_images(data.validation, _FEWEST)
    quickest = bundles[min(times, key=times.__getitem__)]
    costs = costs_of(saved, bundles, times, target, decision_ms(quickest, images, "margin", target))
    known = {name: CandidateScores(scores[name], costs.networks[name]) for name in bundles}
    choice = choose(known, labels, target_accuracy, margin, costs.decision)
    tested, test_labels = _scores(bundles, data.test)

    def alone(name: str) -> CascadeOption:
        tallies = single_tally(scores[name], labels), single_tally(tested[name], test_labels)
        return CascadeOption(name, *tallies, costs.networks[name])

    found = Cascading(
        target.name,
        target_accuracy,
        margin,
        costs,
        choice,
        cascade=_cascade_way(choice.pair, tested, test_labels),
        single=None if choice.single is None else alone(choice.single.name),
        parts=() if choice.pair is None else (alone(choice.pair.small), alone(choice.pair.big)),
    )
    if choice.pair is None or not choice.gains:
        return found
    for name in (choice.pair.small, choice.pair.big):
        bundles[name].verify()
    timed = _timed(job, found, choice.pair, bundles, times, target)
    if not timed.gains:
        return timed
    _tell_of_limit(job, goal, timed)
    _write(job, timed, choice.pair, bundles, out)
    return replace(timed, folder=out)


def _affordable(job: Job, goal: SearchGoal) -> dict[str, Bundle]:
    """Return the finalists without those that were found to cost more than a limit allows.

    Limits on scores do not apply to the parts of a cascade: its accuracy is that of both together.
    """
    costs = [objective for objective in goal.objectives if objective.is_cost]
    bundles = read_bundles(job.folder.output(goal.target) / "bundles")
    checks = {name: of_bundle(bundle, costs) for name, bundle in bundles.items()}
    able = best_kept(checks)
    if bundles and not able:
        raise none_keeps(checks, "cascade")
    for name in bundles:
        for line in limit_messages(checks[name]):
            what = "is used anyway" if name in able else "is left out"
            job.reporter.note(f"finalist {name} {what}: {line}")
    return {name: bundles[name] for name in able}


def _target(job: Job, goal: SearchGoal) -> Target:
    task = job.run_inputs.task
    if task.meaning.kind != "class_scores":
        raise ConfigError(
            f"task {task.name} gives {task.meaning.kind}; a cascade needs class_scores of images, "
            "from which it computes the confidence of a network"
        )
    if not goal.targets:
        raise ConfigError(
            "the recipe has no objective latency_ms, which orders the networks by cost; add it, or "
            "give a target of `hwnas specialise` with --target"
        )
    target = Target.parse(goal.targets[0])
    runtime = target.device.runtime
    if target.device.batch != 1 or runtime != "onnxruntime" or goal.number_formats != ("fp32",):
        raise ConfigError(
            f"target {target.name}: a cascade runs in ONNX Runtime, in fp32, one image at a time; "
            "give a target cpu-onnxruntime-fp32-b1-tTHREADS with --target"
        )
    return target


def _scores(
    bundles: Mapping[str, Bundle], split: Split
) -> tuple[dict[str, NDArray[Any]], NDArray[np.integer]]:
    """Return the class scores of all networks for all images of a split, and the labels."""
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in bundles}
    for start in range(0, len(split), _CHUNK):
        images, _ = split.take(np.arange(start, min(start + _CHUNK, len(split))))
        for name, bundle in bundles.items():
            found[name].append(bundle.predict(images))
    return {name: np.concatenate(parts) for name, parts in found.items()}, split.targets


def _first_images(split: Split, count: int) -> NDArray[np.uint8]:
    """Return at most ``count`` images of a split."""
    first = split.first(count)
    images, _ = first.take(np.arange(len(first)))
    return images


def _timed(
    job: Job,
    found: Cascading,
    pair: Pair,
    bundles: Mapping[str, Bundle],
    times: Mapping[str, float],
    target: Target,
) -> Cascading:
    """Time the cascade, its parts and the single network, interleaved on the same images."""
    count = max(_FEWEST, min(_MOST, int(_PASS_MS / max(times.values()))))
    images = _first_images(job.run_inputs.data.test, count)
    ways = {way.name: way for way in (found.single, *found.parts) if way is not None}
    passes: dict[str, Pass] = {n: network_pass(bundles[n], images, target) for n in ways}
    two = bundles[pair.small], bundles[pair.big]
    passes[str(pair)] = cascade_pass(*two, pair.rule, pair.threshold, images, target)
    measured = time_passes(passes, len(images), target)

    def timed(way: CascadeOption | None) -> CascadeOption | None:
        return None if way is None else replace(way, measured_ms=measured[way.name])

    return replace(
        found,
        cascade=timed(found.cascade),
        single=timed(found.single),
        parts=tuple(replace(part, measured_ms=measured[part.name]) for part in found.parts),
        timed_images=len(images),
    )


def _tell_of_limit(job: Job, goal: SearchGoal, found: Cascading) -> None:
    """Warn if the mean latency of the cascade exceeds the limit that holds for a single network."""
    mean = None if found.cascade is None else found.cascade.measured_ms
    limits = [o.limit for o in goal.objectives if o.all_targets == (found.target,)]
    for limit in limits:
        if mean is not None and limit is not None and mean.p50 > limit:
            job.reporter.note(
                f"warning: the cascade takes {mean.p50:.3g} ms an image on average (measured); the "
                f"limit is {limit:g}"
            )


def _write(
    job: Job, found: Cascading, pair: Pair, bundles: Mapping[str, Bundle], out: Path
) -> None:
    folder, recipe = job.folder, job.recipe
    write_cascade(
        out,
        small=bundles[pair.small],
        big=bundles[pair.big],
        rule=pair.rule,
        threshold=pair.threshold,
        numbers=_numbers(found),
        golden_images=_first_images(job.run_inputs.data.validation, _GOLDEN_FROM),
        provenance={
            "run": recipe.name,
            "seed": recipe.seed,
            "recipe": recipe.hash,
            "target_accuracy": found.target_accuracy,
            "margin": found.margin,
            "data": {
                "source": recipe.data.source,
                "fingerprint": job.run_inputs.data.fingerprint,
            },
            "versions": folder.about["versions"],
            "machine": machine(),
        },
    )


def _numbers(found: Cascading) -> list[dict[str, Any]]:
    """Return the accuracies and costs of the cascade, its parts and the best single network."""
    rows: list[dict[str, Any]] = []
    ways = {"cascade": found.cascade, **{part.name: part for part in found.parts}}
    if found.single is not None:
        ways[found.single.name] = found.single
    for of, way in ways.items():
        if way is None:
            continue
        for split, tally in (("validation", way.validation), ("test", way.test)):
            accuracy = _evaluated("accuracy", tally.accuracy, tally.n)
            rows.append({**accuracy, "of": of, "split": split})
            if of == "cascade":
                share = _evaluated("share_of_big", tally.share, tally.n)
                rows.append({**share, "of": of, "split": split})
        where, costs = {"of": of, "target": found.target}, found.costs
        kind = "modelled" if of == "cascade" else costs.kind
        about = {"name": costs.name, "unit": costs.unit, "kind": kind}
        rows.append({**where, **about, "value": way.expected})
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


def _cascade_way(
    pair: Pair | None, tested: Mapping[str, NDArray[Any]], labels: NDArray[np.integer]
) -> CascadeOption | None:
    if pair is None:
        return None
    scores = tested[pair.small], tested[pair.big]
    tally = pair_tally(*scores, labels, pair.rule, pair.threshold)
    return CascadeOption(str(pair), pair.tally, tally, pair.cost)
