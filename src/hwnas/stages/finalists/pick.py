"""Choice of the network that a user exports from a run."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.errors import ConfigError, InfeasibleError
from hwnas.plugin import closest
from hwnas.search import Scored
from hwnas.search.objectives.objective import LATENCY
from hwnas.stages.finalists.bundles import is_pick, latency_of, picks, read_bundles
from hwnas.stages.finalists.limits import best_kept, limit_messages, none_keeps, of_bundle
from hwnas.stages.finalists.reference import references_of
from hwnas.stages.finalists.stage import make_bundles
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job
from hwnas.stages.search import found

__all__ = ["make_bundle", "picked"]


def picked(
    job: Job, goal: SearchGoal, pick: str | None, max_latency_ms: float | None
) -> Bundle | Scored:
    """Return the bundle of the picked finalist, or the trial of a network that has no bundle.

    A finalist that breaks a limit of the run, as measured, can be picked only by its id. The user
    is warned if the picked finalist breaks a limit or misses one within noise.

    Args:
        job: Run of the goal.
        goal: Goal whose networks are considered.
        pick: One of `picks`, such as ``"knee"``; or ``"reference"`` or a conversion of it; or an
            id. If None, the knee; with a latency limit, the most accurate.
        max_latency_ms: Highest measured latency, in the first latency objective, of finalists that
            are considered; None for no limit.

    Raises:
        ConfigError: There is no such pick.
        InfeasibleError: No finalist is fast enough, or none meets the limits of the run, and the
            message names the closest; or the picked network was not measured to be fast enough.
    """
    references = references_of(job, goal)
    if pick in references:
        return references[pick]
    bundles = read_bundles(job.folder.output(goal.target) / "bundles")
    latencies: dict[str, float] = {}
    if max_latency_ms is not None:
        if not any(objective.metric == LATENCY for objective in goal.objectives):
            raise ConfigError(
                "--max-latency-ms cannot be used: the recipe has no objective latency_ms"
            )
        latencies = {name: latency_of(b, goal.objectives) or inf for name, b in bundles.items()}
        bundles = {k: b for k, b in bundles.items() if latencies[k] <= max_latency_ms}
        if not bundles:
            raise InfeasibleError(
                f"no finalist takes at most {max_latency_ms:g} ms; the fastest was measured at "
                f"{min(latencies.values()):.3g} ms"
            )
    checks = {name: of_bundle(bundle, goal.objectives) for name, bundle in bundles.items()}
    named = picks(bundles, job.run_inputs.task.metrics[0], goal.objectives)
    wanted = pick or ("knee" if max_latency_ms is None and "knee" in named else "most-accurate")
    if is_pick(wanted) and bundles and not best_kept(checks):
        raise none_keeps(checks)
    chosen = named.get(wanted, wanted)
    if chosen in bundles:
        _tell(job, chosen, limit_messages(checks[chosen]))
        return bundles[chosen]
    trials = [t for t in found(job.folder.path, goal).trials if t.candidate.id == chosen]
    if trials and max_latency_ms is not None:
        latency = latencies.get(chosen)
        known_latency = "was not measured" if latency is None else f"takes {latency:.3g} ms"
        raise InfeasibleError(
            f"network {chosen} {known_latency}, and --max-latency-ms is {max_latency_ms:g}; leave "
            "that out, or pick another network"
        )
    if not trials:
        known = [*named, *bundles, *references]
        raise ConfigError(
            f"--pick {wanted!r} is not a network of this run; {closest(wanted, known)}"
        )
    return trials[0]


def make_bundle(job: Job, goal: SearchGoal, trial: Scored, out: Path) -> None:
    """Make the bundle of a network that is no finalist, without changing the run."""
    weights = job.supernet_weights(goal)
    name = trial.candidate.id
    with job.reporter.stage(f"bundle of {name}") as advance:
        make_bundles(job, goal, [trial], weights, out, advance)
    for file in (out / name).iterdir():
        file.rename(out / file.name)
    (out / name).rmdir()
    _tell(job, name, limit_messages(of_bundle(Bundle.load(out), goal.objectives)))


def _tell(job: Job, name: str, missed: Sequence[str]) -> None:
    """Warn of each limit that a picked network does not keep."""
    for line in missed:
        job.reporter.note(f"warning: network {name} does not meet a limit: {line}")
