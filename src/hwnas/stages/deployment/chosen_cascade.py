"""Choice of a cascade among networks that exist, its test accuracy and its energy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.cascades.choice import (
    CandidateScores,
    CascadeChoice,
    Pair,
    best_pairs,
    choose,
    pair_tally,
    single_tally,
)
from hwnas.deploy.cascades.curve import NetworkOutcomes
from hwnas.deploy.targets.target import Target
from hwnas.errors import EnergyUnavailable, InfeasibleError
from hwnas.stages.deployment.cascade_costs import Costs, energy_costs, latency_costs
from hwnas.stages.deployment.cascade_result import CascadeOption, CascadeSettings, Cascading
from hwnas.stages.deployment.pair_search import PairSearch
from hwnas.stages.deployment.paired_networks import PairedNetworks, class_scores
from hwnas.stages.job import Job

__all__ = ["chosen_cascade"]


def chosen_cascade(
    job: Job,
    target: Target,
    settings: CascadeSettings,
    paired: PairedNetworks,
    search: PairSearch | None,
) -> Cascading:
    """Choose by validation images; then evaluate the chosen networks on test images.

    Args:
        job: Run of the networks.
        target: Target of the costs.
        settings: Accuracy to reach and cost to save.
        paired: Networks to choose from.
        search: Comparison of all scored networks, if there was one.

    Raises:
        InfeasibleError: Neither a network nor a pair reaches the accuracy.
        EnergyUnavailable: Energy is to be saved, but it is neither counted nor predicted.
    """
    costs = latency_costs(paired.times_ms, paired.decision_ms)
    if settings.saved == "energy":
        costs = energy_costs(paired.bundles, paired.times_ms, target, paired.decision_ms)
    labels = paired.labels
    known = {n: CandidateScores(s, costs.networks[n]) for n, s in paired.scores.items()}
    aim = settings.target_accuracy, settings.margin, costs.decision
    choice = choose(known, labels, *aim)
    pair, single = choice.pair, choice.single
    parts = () if pair is None else (pair.small, pair.big)
    names = dict.fromkeys([*parts, *([] if single is None else [single.name])])
    energy, unknown = _energy(costs, {n: paired.bundles[n] for n in names}, paired, target)
    tested, test_labels = class_scores(
        {n: paired.bundles[n] for n in names}, job.run_inputs.data.test
    )

    def alone(name: str) -> CascadeOption:
        tallies = (
            single_tally(paired.scores[name], labels),
            single_tally(tested[name], test_labels),
        )
        joules = None if energy is None else energy.networks[name]
        return CascadeOption(name, *tallies, costs.networks[name], joules)

    return Cascading(
        target.name,
        settings.target_accuracy,
        settings.margin,
        costs,
        choice,
        cascade=_cascade_way(pair, tested, test_labels, energy),
        single=None if single is None else alone(single.name),
        parts=tuple(map(alone, parts)),
        energy="unknown" if energy is None else energy.kind,
        energy_unknown=unknown,
        search=search,
        of_finalists=None if search is None else _of_finalists(search, known, labels, aim),
        delivered=_delivered(search, known, labels, aim),
    )


def _energy(
    costs: Costs, bundles: Mapping[str, Bundle], paired: PairedNetworks, target: Target
) -> tuple[Costs | None, str]:
    """Return the energies of a few networks, or None and the reason why they are unknown."""
    if costs.name == "energy":
        return costs, ""
    try:
        return energy_costs(bundles, paired.times_ms, target, paired.decision_ms), ""
    except EnergyUnavailable as error:
        return None, str(error)


def _of_finalists(
    search: PairSearch,
    known: Mapping[str, CandidateScores],
    labels: NDArray[np.integer],
    aim: tuple[float, float, float],
) -> CascadeChoice:
    """Return the choice without the networks that were made now, for comparison."""
    finalists = {name: each for name, each in known.items() if name not in search.made}
    try:
        return choose(finalists, labels, *aim)
    except InfeasibleError:
        return CascadeChoice(None, None)


def _delivered(
    search: PairSearch | None,
    known: Mapping[str, CandidateScores],
    labels: NDArray[np.integer],
    aim: tuple[float, float, float],
) -> tuple[Pair, ...]:
    """Return the chosen pairs of a comparison as delivered, as far as both networks exist."""
    if search is None:
        return ()
    target, margin, overhead = aim
    names = {name for pair in search.pairs for name in (pair.small, pair.big)} & known.keys()
    outcomes = {n: NetworkOutcomes.of(known[n].scores, labels, known[n].cost) for n in names}
    found = []
    for pair in search.pairs:
        if {pair.small, pair.big} <= names:
            small, big = sorted((pair.small, pair.big), key=lambda n: outcomes[n].cost)
            ways = best_pairs(outcomes, small, big, target, margin, overhead)
            reach = [w for w in ways if w.tally.at_least(margin) >= target]
            best = min(reach, key=lambda w: w.cost, default=None)
            best = best or max(ways, key=lambda w: w.tally.accuracy, default=None)
            found += [] if best is None else [best]
    return tuple(found)


def _cascade_way(
    pair: Pair | None,
    tested: Mapping[str, NDArray[Any]],
    labels: NDArray[np.integer],
    energy: Costs | None,
) -> CascadeOption | None:
    if pair is None:
        return None
    scores = tested[pair.small], tested[pair.big]
    tally = pair_tally(*scores, labels, pair.rule, pair.threshold)
    joules = None
    if energy is not None:
        spent = energy.networks
        joules = spent[pair.small] + energy.decision + pair.tally.share * spent[pair.big]
    return CascadeOption(str(pair), pair.tally, tally, pair.cost, joules)
