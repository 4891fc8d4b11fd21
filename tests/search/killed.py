"""A search in a process of its own, to be killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hwnas.search import Objective, RayActors, ScoreStore, SearchResult, run_search
from hwnas.search.cluster import local_ray
from hwnas.search.evaluate import Evaluation, Evaluator, Fidelity
from hwnas.search.executor import Executor
from hwnas.search_spaces import Candidate
from own_parts import Dials, EvenDials


def with_environment(
    environment: Mapping[str, str], function: Callable[..., object], *arguments: object
) -> None:
    """Call a function in a process that was forked from one with an older environment."""
    os.environ.update(environment)
    function(*arguments)


OBJECTIVES = [Objective("accuracy", "maximize"), Objective("params", "minimize")]
SEED = 3
BATCH = 4


@dataclass
class Paced(EvenDials):
    """Takes its time, so that a kill can come in the middle of an evaluation."""

    seconds: float = 0.01

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        time.sleep(self.seconds)
        return super().evaluate(candidate, fidelity)


@dataclass(frozen=True)
class Drive:
    """A search that may have begun already.

    Attributes:
        folder: Of its files.
        sampler: Name of the sampler.
        trials: In all.
        workers: Ray actors; 0 evaluates in the process itself.
        seconds: That an evaluation takes.
        options: Of the sampler.
    """

    folder: Path
    sampler: str
    trials: int
    workers: int = 0
    seconds: float = 0.01
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def study(self) -> Path:
        return self.folder / "study.db"

    def search(self, evaluator: Evaluator | Executor) -> SearchResult:
        """All that is left of it, here."""
        return run_search(
            Dials(9),
            OBJECTIVES,
            evaluator,
            trials=self.trials,
            batch=BATCH,
            sampler=self.sampler,
            sampler_options=self.options,
            seed=SEED,
            study=self.study,
            scores=ScoreStore(self.folder / "scores.jsonl"),
            first=[Dials(9).smallest(), Dials(9).largest()],
        )

    def run(self) -> None:
        """What the process does."""
        if self.workers == 0:
            self.search(Paced(seconds=self.seconds))
            return
        with local_ray(2, [Path(__file__).parent]):
            self.search(RayActors(Paced(seconds=self.seconds), self.workers))
