"""Cascade of two networks of a run: chosen on validation images, tested, timed and packaged."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.cascades.choice import (
    Pair,
    single_tally,
)
from hwnas.deploy.cascades.packing import write_cascade
from hwnas.deploy.cascades.timing import Pass, cascade_pass, network_pass, time_passes
from hwnas.deploy.targets.machine import machine
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.stages.deployment.cascade_costs import (
    energy_costs,
)
from hwnas.stages.deployment.cascade_result import (
    CascadeOption,
    CascadeSettings,
    Cascading,
    numbers_of,
)
from hwnas.stages.deployment.chosen_cascade import chosen_cascade
from hwnas.stages.deployment.pair_search import PairSearch, make_pairs, search_pairs
from hwnas.stages.deployment.paired_networks import (
    FEWEST_TIMED,
    PairedNetworks,
    affordable,
    first_images,
    paired_finalists,
    with_networks,
)
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job

__all__ = ["make_cascade"]

_GOLDEN_FROM = 256
_PASS_MS = 1000.0
_MOST_TIMED = 1000
"""Most test images that are timed; they take about `_PASS_MS` together."""


def make_cascade(job: Job, goal: SearchGoal, settings: CascadeSettings, out: Path) -> Cascading:
    """Choose two networks, and package them if their cascade is cheaper than any single network.

    Args:
        job: Run of the networks.
        goal: Goal of the run that the networks belong to.
        settings: Accuracy to reach, cost to save, and networks to pair.
        out: Folder of the cascade.

    Raises:
        ConfigError: The task is not classification, or the target does not run one image at a time
            in ONNX Runtime.
        InfeasibleError: Neither a network nor a pair reaches the accuracy, or all finalists cost
            more than a limit allows.
        ArtifactError: A bundle is damaged.
        EnergyUnavailable: Energy is to be saved, but it is neither counted nor predicted.
        RunError: A finalist was not measured.
    """
    target = _target(job, goal)
    paired = paired_finalists(job, goal, target)
    if settings.saved == "energy":  # before anything that takes long
        name, bundle = next(iter(paired.bundles.items()))
        energy_costs({name: bundle}, paired.times_ms, target, paired.decision_ms)
    search: PairSearch | None = None
    with tempfile.TemporaryDirectory() as folder:
        if settings.among == "scored":
            search = _search(job, goal, settings, paired)
            made = affordable(
                job, goal, make_pairs(job, goal, search, paired.bundles, Path(folder)), "network"
            )
            search = replace(search, made=tuple(made))
            paired = with_networks(paired, made, job, target)
        found = chosen_cascade(job, target, settings, paired, search)
        pair = found.choice.pair
        if pair is None or not found.choice.gains:
            return found
        for name in (pair.small, pair.big):
            paired.bundles[name].verify()
        found = _timed(job, found, pair, paired, target)
        if not found.gains:
            return found
        _tell_of_limit(job, goal, found)
        _write(job, found, pair, paired.bundles, out)
    return replace(found, folder=out)


def _search(
    job: Job, goal: SearchGoal, settings: CascadeSettings, finalists: PairedNetworks
) -> PairSearch:
    """Compare all scored networks, and tell the user what was left out."""
    n, aim = len(finalists.labels), settings.target_accuracy
    search = search_pairs(
        job,
        goal,
        {name: single_tally(s, finalists.labels).accuracy for name, s in finalists.scores.items()},
        aim + settings.margin * (aim * (1 - aim) / n) ** 0.5,
        finalists.decision_ms,
        settings.saved,
        settings.pairs,
        settings.most_scored,
    )
    if search.scored < search.networks:
        job.reporter.note(
            f"{search.scored} of {search.networks} networks of the search are compared; the "
            "others have no weights or no predicted cost, or are beyond the largest number"
        )
    if search.predicted != settings.saved:
        job.reporter.note(
            f"the search predicted no {settings.saved}; its networks are compared by "
            f"{search.predicted}, and the chosen ones by {settings.saved}"
        )
    return search


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


def _timed(
    job: Job,
    found: Cascading,
    pair: Pair,
    paired: PairedNetworks,
    target: Target,
) -> Cascading:
    """Time the cascade, its parts and the single network, interleaved on the same images."""
    bundles = paired.bundles
    count = max(FEWEST_TIMED, min(_MOST_TIMED, int(_PASS_MS / max(paired.times_ms.values()))))
    images = first_images(job.run_inputs.data.test, count)
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
        numbers=numbers_of(found),
        golden_images=first_images(job.run_inputs.data.validation, _GOLDEN_FROM),
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
