"""Who proposes configurations to the tuner: rules, evolution, or something of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from random import Random
from typing import Protocol

from hwnas.kernels.operator import Config
from hwnas.kernels.trial import Task, Trial, key_of
from hwnas.plugin import resolve

__all__ = ["PROPOSERS", "Evolution", "Proposer", "Rules", "proposer_named"]


class Proposer(Protocol):
    """Proposes configurations and is told what became of them.

    One of the user's own is a class or a function of ``(task, seed)``, named
    ``"package.module:object"``. A language model finds in a task what is to be tuned and in each
    trial the verdict, its reason, the registers, the spills and the times.
    """

    def ask(self, count: int) -> Sequence[Config]:
        """Up to so many configurations, the most promising first; the tuner drops known ones."""

    def tell(self, trials: Sequence[Trial]) -> None:
        """What became of configurations, also of those that were refused."""


class Rules:
    """Changes the best configurations where the compiler's feedback says that they are limited."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task = task
        self._random = Random(seed)
        self._timed: list[Trial] = []

    def ask(self, count: int) -> Sequence[Config]:
        """What to start with, then neighbours of the best three, then any."""
        problem = self._task.problem
        near = [
            neighbour
            for trial in sorted(self._timed, key=lambda trial: trial.p50_us)[:3]
            for neighbour in self._by_rules(trial)
        ]
        strange = (problem.random(self._random) for _ in range(count // 4))
        return list(islice(_distinct([*self._task.starts, *near, *strange]), count))

    def tell(self, trials: Sequence[Trial]) -> None:
        """Only those that ran are built upon."""
        self._timed += [trial for trial in trials if trial.times]

    def _by_rules(self, trial: Trial) -> list[Config]:
        """Neighbours, first those that take away what limits the trial."""
        card = self._task.card
        few = trial.footprint is not None and trial.footprint.programs < 2 * card.multiprocessors
        crowded = bool(trial.resources) and trial.occupancy(card) < 0.25

        def merit(neighbour: Config) -> int:
            change = {name: value - trial.config[name] for name, value in neighbour.items()}
            blocks = sum(
                (step > 0) - (step < 0) for name, step in change.items() if name.startswith("BLOCK")
            )
            warps, stages = change.get("num_warps", 0), change.get("num_stages", 0)
            good = (few and blocks < 0) + (crowded and (blocks < 0 or warps > 0 or stages < 0))
            return good - (trial.spilled_bytes > 0 and (blocks > 0 or warps < 0))

        return sorted(self._task.problem.neighbours(trial.config), key=merit, reverse=True)


class Evolution:
    """Crosses and changes the best sixteen configurations."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task = task
        self._random = Random(seed)
        self._alive: list[Trial] = []

    def ask(self, count: int) -> Sequence[Config]:
        """What to start with and any, as long as few are alive; then children."""
        problem, random = self._task.problem, self._random
        if len(self._alive) < 4:
            return [*self._task.starts, *(problem.random(random) for _ in range(count))][:count]
        children = (self._child() for _ in range(count))
        return list(_distinct(child for child in children if not problem.broken(child)))

    def tell(self, trials: Sequence[Trial]) -> None:
        """Those that ran live on while they are among the best."""
        alive = self._alive + [trial for trial in trials if trial.times]
        self._alive = sorted(alive, key=lambda trial: trial.p50_us)[:16]

    def _child(self) -> Config:
        """Of two parents, each the better of two; at times one value is any."""
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
    """Each once, where it is first."""
    seen = set()
    for config in configs:
        if (key := key_of(config)) not in seen:
            seen.add(key)
            yield config


PROPOSERS: dict[str, Callable[[Task, int], Proposer]] = {"evolution": Evolution, "rules": Rules}


def proposer_named(name: str) -> Callable[[Task, int], Proposer]:
    """What makes a proposer for a task and a seed.

    Raises:
        ConfigError: There is none of this name.
    """
    return resolve("proposer", name, PROPOSERS)
