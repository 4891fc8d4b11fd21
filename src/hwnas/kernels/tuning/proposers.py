"""Proposers of configurations for the tuner: rules, evolution, or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from random import Random
from typing import Protocol

from hwnas.kernels.operator import Config
from hwnas.kernels.tuning.trial import TuningTask, TuningTrial, key_of
from hwnas.plugin import resolve

__all__ = ["PROPOSERS", "EvolutionProposer", "Proposer", "RuleProposer", "proposer_named"]


class Proposer(Protocol):
    """Proposer of configurations, which is told their results.

    A user's own proposer is a class or a function of ``(task, seed)``, named
    ``"package.module:object"``. A language model finds in the task what is to be tuned, and in each
    trial the verdict, its reason, the registers, the spills and the times.
    """

    def ask(self, count: int) -> Sequence[Config]:
        """Return at most ``count`` configurations, the most promising first.

        The tuner drops known ones.
        """

    def tell(self, trials: Sequence[TuningTrial]) -> None:
        """Receive the results of configurations, including refused ones."""


class RuleProposer:
    """Proposer that changes the best configurations by rules, based on the compiler's feedback."""

    def __init__(self, task: TuningTask, seed: int) -> None:
        self._task = task
        self._random = Random(seed)
        self._timed: list[TuningTrial] = []

    def ask(self, count: int) -> Sequence[Config]:
        """Return the task's starts, neighbours of the best three, and random configurations."""
        problem = self._task.problem
        near = [
            neighbour
            for trial in sorted(self._timed, key=lambda trial: trial.p50_us)[:3]
            for neighbour in self._by_rules(trial)
        ]
        strange = (problem.random(self._random) for _ in range(count // 4))
        return list(islice(_distinct([*self._task.starts, *near, *strange]), count))

    def tell(self, trials: Sequence[TuningTrial]) -> None:
        """Remember the trials that ran."""
        self._timed += [trial for trial in trials if trial.times]

    def _by_rules(self, trial: TuningTrial) -> list[Config]:
        """Return the neighbours of a trial, those first that relieve its bottleneck."""
        gpu = self._task.gpu
        few = trial.footprint is not None and trial.footprint.programs < 2 * gpu.multiprocessors
        crowded = bool(trial.resources) and trial.occupancy(gpu) < 0.25

        def merit(neighbour: Config) -> int:
            change = {name: value - trial.config[name] for name, value in neighbour.items()}
            blocks = sum(
                (step > 0) - (step < 0) for name, step in change.items() if name.startswith("BLOCK")
            )
            warps, stages = change.get("num_warps", 0), change.get("num_stages", 0)
            good = (few and blocks < 0) + (crowded and (blocks < 0 or warps > 0 or stages < 0))
            return good - (trial.spilled_bytes > 0 and (blocks > 0 or warps < 0))

        return sorted(self._task.problem.neighbours(trial.config), key=merit, reverse=True)


class EvolutionProposer:
    """Evolutionary proposer that crosses and mutates the best sixteen configurations."""

    def __init__(self, task: TuningTask, seed: int) -> None:
        self._task = task
        self._random = Random(seed)
        self._alive: list[TuningTrial] = []

    def ask(self, count: int) -> Sequence[Config]:
        """Return the task's starts and random configurations until four ran, then children."""
        problem, random = self._task.problem, self._random
        if len(self._alive) < 4:
            return [*self._task.starts, *(problem.random(random) for _ in range(count))][:count]
        children = (self._child() for _ in range(count))
        return list(_distinct(child for child in children if not problem.broken(child)))

    def tell(self, trials: Sequence[TuningTrial]) -> None:
        """Keep the best sixteen of the trials that ran."""
        alive = self._alive + [trial for trial in trials if trial.times]
        self._alive = sorted(alive, key=lambda trial: trial.p50_us)[:16]

    def _child(self) -> Config:
        """Return a child of two parents, each the better of two trials; each value may mutate."""
        mother, father = (
            min(self._random.sample(self._alive, 2), key=lambda trial: trial.p50_us).config
            for _ in range(2)
        )
        child = {name: self._random.choice((mother[name], father[name])) for name in mother}
        for name, values in self._task.problem.variables.items():
            if self._random.random() < 1 / len(child):
                child[name] = self._random.choice(values)
        return child


def _distinct(configs: Iterable[Config]) -> Iterator[Config]:
    """Yield each configuration once, where it comes first."""
    seen = set()
    for config in configs:
        if (key := key_of(config)) not in seen:
            seen.add(key)
            yield config


PROPOSERS: dict[str, Callable[[TuningTask, int], Proposer]] = {
    "evolution": EvolutionProposer,
    "rules": RuleProposer,
}


def proposer_named(name: str) -> Callable[[TuningTask, int], Proposer]:
    """Return the function of a task and a seed that makes the proposer of a name.

    Raises:
        ConfigError: There is no proposer of this name.
    """
    return resolve("proposer", name, PROPOSERS)
