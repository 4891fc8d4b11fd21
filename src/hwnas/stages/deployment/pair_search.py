"""Search for cascades among all networks that a search scored, not only its finalists.

Every pair is compared by the outcomes of both networks on the validation images, with the weights
of the search and with predicted costs. A few pairs of the front are then made: fine-tuned like
finalists, exported and measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.cascades.choice import Pair
from hwnas.deploy.cascades.pair_front import nearest_pairs, pair_front
from hwnas.errors import HwnasError
from hwnas.search import Scored
from hwnas.search.engine.result import as_limits_see
from hwnas.search.objectives.objective import LATENCY, label_on, violations
from hwnas.stages.deployment.cascade_costs import ENERGY, Saved
from hwnas.stages.deployment.scored_networks import scored_outcomes, spread_trials
from hwnas.stages.finalists.stage import make_bundles
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job
from hwnas.stages.search import found

__all__ = ["PairSearch", "make_pairs", "search_pairs"]


@dataclass(frozen=True)
class PairSearch:
    """Result of comparing the pairs of all scored networks.

    Attributes:
        networks: Number of networks that the search scored and that meet the limits on costs.
        scored: Number of them that were compared; others have no kept weights, no predicted cost or
            are too many.
        predicted: Cost by which they were compared: ``"latency"`` or ``"energy"``.
        shift: Difference between an accuracy after the fine-tuning and with the weights of the
            search, the median over the finalists.
        pairs: Chosen pairs of the front, with accuracy, threshold and cost as estimated.
        made: Ids of the networks that were made for them beside the finalists.
    """

    networks: int
    scored: int
    predicted: Saved
    shift: float
    pairs: tuple[Pair, ...]
    made: tuple[str, ...] = ()


def search_pairs(
    job: Job,
    goal: SearchGoal,
    accuracies: Mapping[str, float],
    wanted: float,
    overhead_ms: float,
    saved: Saved,
    count: int,
    most_scored: int,
) -> PairSearch:
    """Choose pairs of networks among all that the search of a goal scored.

    Args:
        job: Run of the networks, of a classification task.
        goal: Goal of the run whose first target counts.
        accuracies: Validation accuracy of each finalist as delivered, by id.
        wanted: Validation accuracy that a delivered cascade has to reach.
        overhead_ms: Time of the decision for one image, in milliseconds.
        saved: Cost to save.
        count: Number of pairs to choose.
        most_scored: Largest number of networks to compare.
    """
    able = _affordable(job, goal)
    predicted, costs = _predicted(able, goal.targets[0], saved)
    known = [trial for name, trial in able.items() if name in costs]
    metric = job.run_inputs.task.metrics[0]
    some = spread_trials(known, metric, costs, most_scored)
    outcomes = scored_outcomes(job, some, costs, job.supernet_weights(goal))
    shifts = [accuracies[n] - outcomes[n].accuracy for n in accuracies if n in outcomes]
    shift = median(shifts) if shifts else 0.0
    overhead = overhead_ms if predicted == "latency" else 0.0
    pairs = nearest_pairs(pair_front(outcomes, overhead), wanted - shift, count)
    return PairSearch(len(able), len(outcomes), predicted, shift, tuple(pairs))


def make_pairs(
    job: Job, goal: SearchGoal, search: PairSearch, finalists: Mapping[str, Bundle], folder: Path
) -> dict[str, Bundle]:
    """Make the networks of pairs that are not finalists, as finalists are made.

    Fine-tuned weights are kept in the run, so that they are not made twice. A network that cannot
    be made is named and left out.

    Args:
        job: Run of the networks.
        goal: Goal of the run.
        search: Result of `search_pairs`.
        finalists: Bundles of the finalists by id.
        folder: Folder of the bundles to write, one for each network.
    """
    names = dict.fromkeys(name for pair in search.pairs for name in (pair.small, pair.big))
    trials = {t.candidate.id: t for t in found(job.folder.path, goal).trials}
    missing = [trials[name] for name in names if name not in finalists]
    if not missing:
        return {}
    failed: dict[str, HwnasError] = {}
    with job.reporter.stage("making networks for cascades") as advance:
        make_bundles(job, goal, missing, job.supernet_weights(goal), folder, advance, failed)
    for name, error in failed.items():
        job.reporter.note(f"network {name} of a chosen pair failed: {error}")
    made = [t.candidate.id for t in missing if t.candidate.id not in failed]
    return {name: Bundle.load(folder / name) for name in made}


def _affordable(job: Job, goal: SearchGoal) -> dict[str, Scored]:
    """Return the scored networks that are predicted to meet all limits on costs, by id.

    Limits on scores do not apply to the parts of a cascade: its accuracy is that of both together.
    """
    limited = [objective for objective in goal.objectives if objective.is_cost]
    return {
        trial.candidate.id: trial
        for trial in found(job.folder.path, goal).trials
        if all(
            missed <= 0
            for missed in violations(limited, as_limits_see(trial.values, trial.estimates)).values()
        )
    }


def _predicted(
    trials: Mapping[str, Scored], target: str, saved: Saved
) -> tuple[Saved, dict[str, float]]:
    """Return predicted costs by id; latencies where energies are to be saved but not predicted.

    A search predicts energies if they are an objective; latency then stands in for them.
    """
    wanted: tuple[Saved, ...] = ("energy", "latency") if saved == "energy" else ("latency",)
    costs: dict[str, float] = {}
    for cost in wanted:
        label = label_on(LATENCY if cost == "latency" else ENERGY, target)
        costs = {n: t.estimates[label].mean for n, t in trials.items() if label in t.estimates}
        if costs:
            return cost, costs
    return "latency", costs
