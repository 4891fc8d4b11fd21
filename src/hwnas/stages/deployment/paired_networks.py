"""Networks that are paired as cascades: bundles with their scores and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.cascades.cascade import CascadePart
from hwnas.deploy.cascades.timing import decision_ms
from hwnas.deploy.measurement.timing import measure
from hwnas.deploy.targets.target import Target
from hwnas.search import Split
from hwnas.stages.deployment.cascade_costs import latencies_ms
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.finalists.limits import best_kept, limit_messages, none_keeps, of_bundle
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job

__all__ = [
    "FEWEST_TIMED",
    "PairedNetworks",
    "affordable",
    "class_scores",
    "first_images",
    "paired_finalists",
    "with_networks",
]

FEWEST_TIMED = 50
"""Smallest number of images that a cascade or its decision is timed on."""
_CHUNK = 256


@dataclass(frozen=True, eq=False)
class PairedNetworks:
    """Networks that are paired, and what the choice is made from.

    Attributes:
        bundles: Bundles by id.
        scores: Class scores (N, K) of the validation images, by id.
        labels: Classes of the validation images, (N,).
        times_ms: Measured latency of each network, by id.
        decision_ms: Time of the decision for one image.
    """

    bundles: Mapping[str, Bundle]
    scores: Mapping[str, NDArray[Any]]
    labels: NDArray[np.integer]
    times_ms: Mapping[str, float]
    decision_ms: float


def paired_finalists(job: Job, goal: SearchGoal, target: Target) -> PairedNetworks:
    """Return the finalists that are not found to cost more than a limit allows."""
    everyone = read_bundles(job.folder.output(goal.target) / "bundles")
    bundles = affordable(job, goal, everyone, "finalist")
    if everyone and not bundles:
        costs = [objective for objective in goal.objectives if objective.is_cost]
        raise none_keeps({n: of_bundle(b, costs) for n, b in everyone.items()}, "cascade")
    data = job.run_inputs.data
    scores, labels = class_scores(bundles, data.validation)
    times = latencies_ms(bundles, target)
    images = first_images(data.validation, FEWEST_TIMED)
    quickest = bundles[min(times, key=times.__getitem__)]
    decision = decision_ms(quickest, images, "margin", target)
    return PairedNetworks(bundles, scores, labels, times, decision)


def with_networks(
    finalists: PairedNetworks, made: Mapping[str, Bundle], job: Job, target: Target
) -> PairedNetworks:
    """Add networks that were made now; all are timed again, in one session."""
    if not made:
        return finalists
    bundles = {**finalists.bundles, **made}
    scores, labels = class_scores(made, job.run_inputs.data.validation)
    timed = measure({name: bundle.onnx_file for name, bundle in bundles.items()}, target)
    times = {name: each.latency_ms for name, each in timed.items()}
    return PairedNetworks(
        bundles, {**finalists.scores, **scores}, labels, times, finalists.decision_ms
    )


def affordable(
    job: Job, goal: SearchGoal, bundles: Mapping[str, Bundle], noun: str
) -> dict[str, Bundle]:
    """Return the networks without those that were found to cost more than a limit allows.

    Limits on scores do not apply to the parts of a cascade: its accuracy is that of both together.
    """
    costs = [objective for objective in goal.objectives if objective.is_cost]
    checks = {name: of_bundle(bundle, costs) for name, bundle in bundles.items()}
    able = best_kept(checks)
    for name in bundles:
        for line in limit_messages(checks[name]):
            what = "is used anyway" if name in able else "is left out"
            job.reporter.note(f"{noun} {name} {what}: {line}")
    return {name: bundles[name] for name in able}


def class_scores(
    bundles: Mapping[str, Bundle], split: Split
) -> tuple[dict[str, NDArray[Any]], NDArray[np.integer]]:
    """Return the class scores of all networks for all images of a split, and the labels.

    They are those of the networks as a cascade runs them, which may not be a bundle's own variant.
    """
    parts = {name: CascadePart.of(bundle) for name, bundle in bundles.items()}
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in bundles}
    for start in range(0, len(split), _CHUNK):
        images, _ = split.take(np.arange(start, min(start + _CHUNK, len(split))))
        for name, part in parts.items():
            found[name].append(part.scores(images))
    return {name: np.concatenate(chunks) for name, chunks in found.items()}, split.targets


def first_images(split: Split, count: int) -> NDArray[np.uint8]:
    """Return at most ``count`` images of a split."""
    first = split.first(count)
    images, _ = first.take(np.arange(len(first)))
    return images
